"""Compiled and rounded rollouts against the exact one, and what an iteration may not do."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from scope_wm.elite_bank import LATER_STEPS, EliteBank
from scope_wm.planning.latent import LatentCost
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.planning.models import Observations
from scope_wm.planning.planners import PLANNERS
from scope_wm.planning.search import standard_start
from scope_wm.types import UsageError

CANDIDATES = 6


def cost_with(model: Path, **options: object) -> LatentCost:
    latent = load_latent_model(ModelSettings(model=str(model), device="cpu", **options))
    drawn = np.random.default_rng(0)
    images = drawn.integers(0, 255, (2, 224, 224, 3), dtype=np.uint8)
    now, goal = (
        latent.see(
            Observations(images=images[i : i + 1], proprio=drawn.normal(size=(1, 2)).astype(np.float32))
        )
        for i in (0, 1)
    )
    return latent.cost(now, goal)


def costs_with(model: Path, **options: object) -> Tensor:
    cost = cost_with(model, **options)
    width = cost.model.fuse.config.action
    candidates = torch.randn(1, CANDIDATES, 3, width, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        return cost(candidates)


COMPILED = """
import sys, torch
from scope_wm.model.fast_rollout import last_imagined
from scope_wm.planning.load import ModelSettings, load_latent_model

torch.set_num_threads(2)
asked = [ModelSettings(model=sys.argv[1], device="cpu", compile=compile) for compile in (False, True)]
exact, compiled = map(load_latent_model, asked)
tokens = exact.world_model.fuse.config
seen = torch.randn(20, tokens.num_tokens, tokens.visual), torch.randn(20, tokens.proprio)
actions = torch.randn(20, 2, tokens.action)
with torch.no_grad():
    frame = last_imagined(exact.world_model, *seen, actions)
    for _ in range(2):  # compiled in one thread, and then used in two
        torch.testing.assert_close(compiled.imagine(*seen, actions, None), frame, rtol=1e-4, atol=1e-5)
print(torch._dynamo.utils.counters["stats"]["unique_graphs"])
"""


@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler")
def test_compiling_changes_no_frame_and_makes_one_graph(random_model: Callable[[str], Path]) -> None:
    # In a process of its own: here every function is wrapped to check its types, which cannot be compiled.
    command = [sys.executable, "-c", COMPILED, str(random_model("wall"))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr


@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_rounding_moves_costs_by_a_little(random_model: Callable[[str], Path], precision: str) -> None:
    exact = costs_with(random_model("wall"))
    rounded = costs_with(random_model("wall"), precision=precision)
    assert rounded.dtype == exact.dtype
    assert 0 < ((rounded - exact) / exact).abs().max() < 0.05


def test_the_simulator_has_nothing_to_compile_or_round() -> None:
    with pytest.raises(UsageError, match="takes no --compile"):
        ModelSettings(model="simulator", compile=True)
    with pytest.raises(UsageError, match="takes no --precision"):
        ModelSettings(model="simulator", precision="int8")


@pytest.mark.parametrize("planner", ["cem", "eb-cem"])
def test_no_iteration_waits_for_the_device(
    random_model: Callable[[str], Path], planner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cost = cost_with(random_model("wall"))
    start, waits = standard_start(1, 2, cost.model.fuse.config.action), list[str]()
    for name in ("item", "cpu", "tolist", "numpy", "__bool__", "__float__", "__int__", "nonzero"):
        original = getattr(Tensor, name)
        monkeypatch.setattr(
            Tensor, name, lambda *of, name=name, call=original: waits.append(name) or call(*of)
        )
    bank: EliteBank | None = None
    counted = []
    for step in range(2):
        generators = [torch.Generator().manual_seed(step)]
        with torch.no_grad():
            _, bank = PLANNERS[planner](cost, start, generators, bank)
        counted.append(len(waits))
        waits.clear()
    # A search looks once, at its end, whether there was a plan to find.
    assert LATER_STEPS.iterations > 1
    assert max(counted) <= 1
