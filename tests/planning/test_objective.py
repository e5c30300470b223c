import numpy as np
import torch

from scope_wm.model.world_model import Fuse, TokenConfig
from scope_wm.planning.objective import Goal, frame_costs, last_frame


def test_costs_are_the_means_of_the_formula() -> None:
    rng = np.random.default_rng(0)
    frames, visual, proprio = (
        rng.normal(size=(2, 3, 4, 9)),
        rng.normal(size=(2, 4, 5)),
        rng.normal(size=(2, 2)),
    )
    fuse = Fuse(TokenConfig(num_tokens=4, visual=5, proprio=3, action=3, embedding=2))
    goal = Goal(visual=torch.tensor(visual), proprio=torch.tensor(proprio))
    costs = frame_costs(fuse, torch.tensor(frames), goal, alpha=0.5)
    for b in range(2):
        for t in range(3):
            near = ((frames[b, t, :, :5] - visual[b]) ** 2).mean()
            own = ((frames[b, t, :, 5:7].mean(0) - proprio[b]) ** 2).mean()
            np.testing.assert_allclose(float(costs[b, t]), near + 0.5 * own, rtol=1e-9)
    np.testing.assert_allclose(last_frame(costs), costs[:, 2])
