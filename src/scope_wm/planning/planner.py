"""Planning for a robot: camera images and proprio in, actions in the robot's own units out.

    planner = Planner.from_pretrained("runs/push_t-lite/refined-k32")
    planner.reset(goal_image, goal_proprio)
    while not done:
        for action in planner.act(image, proprio):
            ...

It is the `Controller` of the evaluation with a single problem: what was measured is what the robot does.
"""

from math import inf
from pathlib import Path

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike

from scope_wm.planning.latent import LatentModel
from scope_wm.planning.load import AUTO, ModelSettings, load_latent_model
from scope_wm.planning.models import Observations
from scope_wm.planning.mpc import Controller, MPCSettings
from scope_wm.planning.planners import PLANNERS
from scope_wm.planning.search import DEADLINE_CHUNK, Limits
from scope_wm.tasks.task import checked
from scope_wm.types import IMAGE_SIZE

Bound = Float64[np.ndarray, " action"] | None


class Planner:
    """Plan towards one goal at a time with a learned model, with actions from `low` to `high`."""

    def __init__(
        self, model: LatentModel, controller: Controller, low: Bound = None, high: Bound = None
    ) -> None:
        self.model = model
        self.controller = controller
        self.low = -inf if low is None else low
        self.high = inf if high is None else high

    @staticmethod
    def from_pretrained(
        source: str | Path,
        *,
        planner: str = "eb-cem",
        horizon: int = 5,
        deadline: float | None = None,
        device: str = AUTO,
        encoder: str | None = None,
        low: ArrayLike | None = None,
        high: ArrayLike | None = None,
    ) -> "Planner":
        """Load a model by its directory, shipped name such as wall/faster, or hub id.

        `horizon` counts world-model actions, each of several steps of the robot. `deadline` is in seconds for
        each search. `device` is where the model runs; "auto" is a GPU if there is one. `encoder` names the
        frozen encoder's directory if it is not where the model says. `low` and `high` bound every action, in
        the units of the robot.
        """
        if planner not in PLANNERS:
            raise ValueError(f"expected a planner of {', '.join(PLANNERS)}, got {planner!r}")
        if horizon < 1:
            raise ValueError(f"expected a horizon of at least 1, got {horizon}")
        if deadline is not None and not 0 < deadline < inf:
            raise ValueError(f"expected a finite deadline above 0 seconds, got {deadline}")
        model = load_latent_model(ModelSettings(model=str(source), encoder=encoder, device=device))
        width = len(model.scale.mean)
        least, most = (
            None if end is None else checked(name, end, width) for name, end in (("low", low), ("high", high))
        )
        if least is not None and most is not None and (least > most).any():
            raise ValueError(f"expected low <= high, got {least.tolist()} and {most.tolist()}")
        standard = [None if end is None else model.scale.to_standard(end) for end in (least, most)]
        chunk = None if deadline is None else DEADLINE_CHUNK
        limits = Limits(low=standard[0], high=standard[1], chunk=chunk, seconds=deadline)
        controller = Controller(model, PLANNERS[planner], MPCSettings(horizon=horizon), limits=limits)
        return Planner(model, controller, least, most)

    def reset(self, goal_image: ArrayLike, goal_proprio: ArrayLike, seed: int = 0) -> None:
        """Begin with a new goal; with the same seed, the same images and proprio lead to the same actions."""
        self.controller.reset(self._observed("goal ", goal_image, goal_proprio), [seed])

    def act(self, image: ArrayLike, proprio: ArrayLike) -> Float64[np.ndarray, "steps action"]:
        """Return the actions to execute, one for each step of the robot, before the next image."""
        actions, _ = self.controller.act(self._observed("", image, proprio))
        return actions[0].clip(self.low, self.high)  # the search keeps the bounds but for rounding

    def _observed(self, of: str, image: ArrayLike, proprio: ArrayLike) -> Observations:
        """Return what the robot sees and feels as a batch of one, or say what is wrong with it."""
        pixels, shape = np.ascontiguousarray(image), (IMAGE_SIZE, IMAGE_SIZE, 3)
        if pixels.dtype != np.uint8 or pixels.shape != shape:
            raise ValueError(
                f"expected a {of}image of uint8 RGB and shape {shape}, got {pixels.dtype} of {pixels.shape}"
            )
        body = checked(f"{of}proprio", proprio, len(self.model.statistics.proprio_mean))
        return Observations(images=pixels[None], proprio=body[None].astype(np.float32))
