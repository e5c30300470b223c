from pathlib import Path

import numpy as np
import pytest
import torch
from tests.train.conftest import World

from scope_wm.data.token_cache import open_tokens
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.model.directory import read_kind
from scope_wm.model.world_model import prediction_loss
from scope_wm.selector import RelevanceHead
from scope_wm.train.distill import KIND, TrainSelectorSettings, head_figures, load_head
from scope_wm.train.dynamics import open_experience
from scope_wm.train.relevance import RelevanceTargets, export_targets, joined
from scope_wm.types import UsageError


@pytest.fixture(scope="module")
def targets(world: World) -> RelevanceTargets:
    config = read_header(world.teacher.out)[1]
    tokens = open_tokens(str(world.tokens), world.data, config.encoder.config, "cpu")
    experience = open_experience(world.data, tokens, history=2, frameskip=5)
    model = TrainedModel.from_pretrained(world.teacher.out).world_model
    return joined(list(export_targets(model, experience.training, np.arange(12), 5)))


def test_targets_are_a_distribution_over_the_tokens_of_each_frame(targets: RelevanceTargets) -> None:
    assert targets.q.shape == (12, 2, 196)
    assert torch.allclose(targets.q.sum(-1), torch.ones(12, 2))
    assert (targets.q.max(-1).values > 3 / 196).all()  # not flat


def test_relevance_is_gradient_times_input_of_the_dense_loss(world: World, targets: RelevanceTargets) -> None:
    config = read_header(world.teacher.out)[1]
    tokens = open_tokens(str(world.tokens), world.data, config.encoder.config, "cpu")
    experience = open_experience(world.data, tokens, history=2, frameskip=5)
    model = TrainedModel.from_pretrained(world.teacher.out).world_model
    visual, proprio, actions = (part.float() for part in experience.training.batch(np.arange(5)))
    x = visual.clone().requires_grad_()
    prediction_loss(model, x, proprio, actions).backward()
    r = (x * x.grad).norm(dim=-1)[:, :2]
    assert torch.allclose(targets.q[:5], (r / r.sum(-1, keepdim=True)).detach(), rtol=1e-4, atol=1e-7)


def test_the_head_sees_the_teachers_embeddings(world: World, targets: RelevanceTargets) -> None:
    config = read_header(world.teacher.out)[1]
    tokens = open_tokens(str(world.tokens), world.data, config.encoder.config, "cpu")
    window = open_experience(world.data, tokens, history=2, frameskip=5).training.batch(np.arange(12))
    fuse = TrainedModel.from_pretrained(world.teacher.out).world_model.fuse
    with torch.no_grad():
        assert torch.allclose(targets.proprio, fuse.proprio(window.proprio[:, :-1]), atol=1e-6)
        assert torch.allclose(targets.action, fuse.action(window.actions), atol=1e-6)


def test_a_distilled_head_is_better_than_a_fresh_one(world: World, targets: RelevanceTargets) -> None:
    head, config = load_head(world.selector.out)
    torch.manual_seed(5)
    fresh = RelevanceHead(visual=config.visual, embedding=config.embedding, hidden=config.hidden)
    assert head_figures(head, targets)["KL"] < head_figures(fresh, targets)["KL"]
    figures = read_kind(world.selector.out, KIND)["made"]["figures"]
    assert figures["chance_32"] == pytest.approx(32 / 196)


@pytest.mark.parametrize(("option", "least"), [("windows", 2), ("windows_at_once", 1), ("hidden", 1)])
def test_numbers_that_make_no_sense_are_refused(option: str, least: int) -> None:
    where = {"teacher": Path("dense"), "data": Path("data"), "tokens": "tokens", "out": Path("selector")}
    with pytest.raises(UsageError, match=f"of at least {least}, got {least - 1}"):
        TrainSelectorSettings(**where, **{option: least - 1})
