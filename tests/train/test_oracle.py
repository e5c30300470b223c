from pathlib import Path

import pytest
import torch
from tests.train.conftest import World

from scope_wm.background import Copy
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.world_model import WorldModel, prediction_loss
from scope_wm.selector import EveryToken, RandomSelector
from scope_wm.train.dynamics import held_out_figures
from scope_wm.train.finished import open_teacher
from scope_wm.train.oracle import oracle_figures


def teacher_and_windows(world: World) -> tuple[WorldModel, list]:
    opened = open_teacher(Path(world.teacher.out), world.data, str(world.tokens), "cpu")
    return TrainedModel.from_pretrained(world.teacher.out).world_model, opened.experience().held_out


def test_with_every_token_kept_the_oracle_changes_nothing(world: World) -> None:
    teacher, windows = teacher_and_windows(world)
    whole = WorldModel(teacher.fuse, teacher.predictor, EveryToken(196), Copy())
    expected = held_out_figures(whole, windows)["one_step_of_copy"]
    assert oracle_figures(whole, teacher, windows)["oracle_of_copy"] == pytest.approx(expected, rel=1e-4)


def test_the_tokens_of_largest_gradient_times_input_are_predicted_and_the_others_copied(world: World) -> None:
    teacher, (window, *_) = teacher_and_windows(world)
    few = WorldModel(teacher.fuse, teacher.predictor, RandomSelector(20, torch.Generator()), Copy())
    visual, proprio, actions = window.visual[:, :2].float(), window.proprio[:, :2], window.actions[:, :1]

    x = visual.clone().requires_grad_()
    targets = visual[:, 1:].clone()
    (gradient,) = torch.autograd.grad(
        prediction_loss(teacher, torch.cat([x[:, :1], targets], 1), proprio, actions), x
    )
    chosen = (x * gradient)[:, 0].norm(dim=-1).topk(20).indices.sort().values
    first = teacher.fuse(
        visual[:, 0], teacher.fuse.proprio(proprio[:, 0]), teacher.fuse.action(actions[:, 0])
    )
    following = few(first.unsqueeze(1), chosen.unsqueeze(1))[:, 0, :, : visual.shape[-1]].detach()
    copied = torch.ones(visual.shape[0], 196).scatter(1, chosen, 0.0).bool()
    assert torch.equal(following[copied], visual[:, 0][copied])

    error, copying = ((z - visual[:, 1]).square().mean() for z in (following, visual[:, 0]))
    assert oracle_figures(few, teacher, [window])["oracle_of_copy"] == pytest.approx(
        float(error / copying), rel=1e-4
    )
