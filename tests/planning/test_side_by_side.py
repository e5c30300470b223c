"""Candidates in parts side by side give the frames of all at once, and leave torch's threads as they were."""

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch
from torch import Tensor

from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.fast_rollout import last_imagined
from scope_wm.planning.load import ModelSettings, chosen_rollout
from scope_wm.planning.side_by_side import LEAST, SideBySide
from scope_wm.selector import RandomSelector

Arguments = tuple[Tensor, Tensor, Tensor, Tensor]


@pytest.fixture(autouse=True, params=[2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    """Give torch several threads, as on a machine that is a test's own."""
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.fixture
def trained(random_model: Callable[[str], Path]) -> TrainedModel:
    """Return a sparse model."""
    return TrainedModel.from_pretrained(random_model("wall"))


def arguments(trained: TrainedModel, count: int) -> Arguments:
    """Return what so many candidates are imagined from."""
    tokens, drawn = trained.config.tokens, torch.Generator().manual_seed(0)
    shapes = (
        (tokens.num_tokens, tokens.visual),
        (tokens.proprio,),
        (2, tokens.action),
        (tokens.num_tokens, tokens.visual),
    )
    visual, proprio, actions, previous = (torch.randn(count, *shape, generator=drawn) for shape in shapes)
    return visual, proprio, actions, previous


@pytest.mark.parametrize("count", [1, 2 * LEAST - 1, 2 * LEAST, 2 * LEAST + 1, 5 * LEAST])
@pytest.mark.parametrize("moving", [False, True])
def test_parts_are_what_the_whole_is(trained: TrainedModel, count: int, moving: bool) -> None:
    visual, proprio, actions, previous = arguments(trained, count)
    imagine, before = partial(last_imagined, trained.world_model), previous if moving else None
    with torch.no_grad():
        whole = imagine(visual, proprio, actions, before)
        side_by_side = SideBySide(imagine)
        for _ in range(3):  # threads do not get in each other's way
            parts = side_by_side(visual, proprio, actions, before)
            torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)


def test_every_part_has_threads_of_its_own(threads: int) -> None:
    seen = list[tuple[int, int, int]]()
    everybody = threading.Barrier(2, timeout=10)  # nobody passes it alone

    def imagine(visual: Tensor, proprio: Tensor, actions: Tensor, previous: Tensor | None) -> Tensor:
        everybody.wait()
        seen.append((threading.get_ident(), torch.get_num_threads(), len(actions)))
        return visual

    wholes = torch.randn(2 * LEAST + 1, 3, 4), torch.randn(2 * LEAST + 1, 2), torch.randn(2 * LEAST + 1, 5, 2)
    torch.testing.assert_close(SideBySide(imagine)(*wholes), wholes[0], rtol=0, atol=0)
    assert len({ident for ident, _, _ in seen}) == 2
    assert {each for _, each, _ in seen} == {threads // 2}
    assert sorted(size for _, _, size in seen) == [LEAST, LEAST + 1]
    assert torch.get_num_threads() == threads


@pytest.mark.parametrize("threads", [2], indirect=True)
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "int8"])
def test_every_precision_is_that_of_its_parts(trained: TrainedModel, precision: str) -> None:
    visual, proprio, actions, _ = arguments(trained, 2 * LEAST)
    settings = ModelSettings(model="wall/faster", precision=precision)
    side_by_side = chosen_rollout(trained.world_model, settings, torch.device("cpu"))
    assert isinstance(side_by_side, SideBySide)
    with torch.no_grad():
        halves = [
            side_by_side.imagine(visual[half], proprio[half], actions[half], None)
            for half in (slice(LEAST), slice(LEAST, None))
        ]
        parts = side_by_side(visual, proprio, actions)
    torch.testing.assert_close(parts, torch.cat(halves), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("threads", "candidates", "parts"),
    [(2, 19, 1), (3, 25, 1), (3, 30, 3), (5, 50, 5), (9, 50, 4)],
    indirect=["threads"],
)
def test_no_thread_is_idle_if_it_can_be_helped(threads: int, candidates: int, parts: int) -> None:
    seen = list[tuple[int, int]]()

    def imagine(visual: Tensor, proprio: Tensor, actions: Tensor, previous: Tensor | None) -> Tensor:
        seen.append((torch.get_num_threads(), len(actions)))
        return visual

    whole = torch.zeros(candidates, 1, 1)
    SideBySide(imagine)(whole, whole[..., 0], whole)
    assert len(seen) == parts
    assert {each for each, _ in seen} == {threads // parts}
    assert min(size for _, size in seen) >= min(LEAST, candidates)


def test_what_compiles_does_so_in_one_thread(threads: int) -> None:
    idents = list[int]()

    def imagine(visual: Tensor, proprio: Tensor, actions: Tensor, previous: Tensor | None) -> Tensor:
        idents.append(threading.get_ident())
        return visual

    whole, side_by_side = torch.zeros(5 * LEAST, 1, 1), SideBySide(imagine, compiles=True)
    for first in (True, False):
        idents.clear()
        side_by_side(whole, whole[..., 0], whole)
        assert (set(idents) == {threading.get_ident()}) == first


def test_an_error_in_a_part_is_told_and_the_threads_come_back(threads: int) -> None:
    finished = list[bool]()

    def broken(visual: Tensor, proprio: Tensor, actions: Tensor, previous: Tensor | None) -> Tensor:
        if visual[0] == 0:
            raise ValueError("no weights")
        time.sleep(0.2)
        finished.append(True)
        return visual

    whole = torch.arange(2.0 * LEAST)[:, None, None]
    with pytest.raises(ValueError, match="no weights"):
        SideBySide(broken)(whole, whole[..., 0], whole)
    assert finished  # it was waited for
    assert torch.get_num_threads() == threads


def test_a_gradient_passes_through(trained: TrainedModel) -> None:
    visual, proprio, actions, _ = arguments(trained, 2 * LEAST)
    model = trained.world_model.requires_grad_(False)
    slopes = []
    for imagine in (partial(last_imagined, model), SideBySide(partial(last_imagined, model))):
        moved = actions.clone().requires_grad_()
        imagine(visual, proprio, moved, None).sum().backward()
        slopes.append(moved.grad)
    torch.testing.assert_close(slopes[1], slopes[0], rtol=0, atol=0)


def test_what_draws_at_random_stays_in_one_thread(trained: TrainedModel) -> None:
    settings, cpu = ModelSettings(model="wall/faster"), torch.device("cpu")
    assert isinstance(chosen_rollout(trained.world_model, settings, cpu), SideBySide)
    trained.world_model.selector = RandomSelector(k=4, generator=torch.Generator())
    assert not isinstance(chosen_rollout(trained.world_model, settings, cpu), SideBySide)
