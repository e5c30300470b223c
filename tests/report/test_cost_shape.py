from dataclasses import replace
from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch

from scope_wm.model.checkpoint import TrainedModel
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.planning.models import Observations
from scope_wm.planning.objective import Goal, distances
from scope_wm.report.cost_shape import (
    PAIRS,
    CostShape,
    cost_shape,
    draw_cost_shape,
    pairs,
    plot,
    rank_correlation,
)
from scope_wm.report.run_directory import HeldOut, open_held_out
from scope_wm.tasks.wall import Wall


@pytest.fixture(scope="module")
def held_out(tiny_run: Path) -> HeldOut:
    return open_held_out(tiny_run, TrainedModel.from_pretrained(tiny_run / "teacher").config.encoder)


def test_pairs_are_of_held_out_frames_and_the_first_half_of_one_episode(held_out: HeldOut) -> None:
    now, goal = pairs(held_out.split)
    episodes = [held_out.split.store.episode_of(numbers) for numbers in (now, goal)]
    assert set(np.concatenate(episodes)) <= set(held_out.split.episodes)
    np.testing.assert_array_equal(*(of[:PAIRS] for of in episodes))
    assert len(now) == len(goal) == 2 * PAIRS


def test_the_cost_is_the_planners_and_the_distance_the_tasks(tiny_run: Path, held_out: HeldOut) -> None:
    shape = cost_shape(TrainedModel.from_pretrained(tiny_run / "teacher"), held_out)
    now, goal = (numbers[:4] for numbers in pairs(held_out.split))
    store, task = held_out.split.store, Wall()
    model = load_latent_model(ModelSettings(model=str(tiny_run / "teacher"), device="cpu"))
    here, there = (
        model.see(Observations(images=store.frames(n), proprio=store.proprio[n], states=store.states[n]))
        for n in (now, goal)
    )
    embed = model.world_model.fuse.proprio
    with torch.no_grad():
        aim = Goal(visual=there.visual, proprio=embed(there.proprio))
        expected = distances(here.visual, embed(here.proprio), aim, model.alpha)
    np.testing.assert_allclose(shape.cost[:4], expected.numpy(), rtol=0.02, atol=1e-5)  # kept in float16
    for row in range(4):
        pair = store.states[now[row]], store.states[goal[row]]
        assert shape.distance[row] == task.distance(*pair)
        assert shape.path_left[row] == task.path_left(*pair)


def test_the_way_is_plotted_too_where_it_is_not_the_distance(tiny_run: Path) -> None:
    values = np.linspace(0, 1, 50)
    same = CostShape(cost=values, distance=values, path_left=values)
    widths = [
        iio.imread(content).shape[1] for content in (plot(same), plot(replace(same, path_left=2 * values)))
    ]
    assert widths[1] == 2 * widths[0]
    assert iio.imread(draw_cost_shape(tiny_run, "teacher")).std() > 10


def test_rank_correlation_asks_for_the_order_alone() -> None:
    values = np.array([0.1, 3.0, 2.0, 50.0])
    assert rank_correlation(values, np.exp(values / 10)) == pytest.approx(1)
    assert rank_correlation(values, -values) == pytest.approx(-1)
    assert rank_correlation(np.arange(4.0), np.array([1.0, 0.0, 3.0, 2.0])) == pytest.approx(0.6)
    tied = rank_correlation(np.array([0.0, 0.0, 1.0, 2.0]), np.arange(4.0))  # ranks 1.5, 1.5, 3, 4
    assert tied == pytest.approx(4.5 / np.sqrt(4.5 * 5))
