from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.train.conftest import FIT, RUN, World

from scope_wm.cli import main
from scope_wm.data.token_cache import TokenCache
from scope_wm.model.architecture import BackgroundConfig
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.planning.latent import Seen
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.selector import DistilledSelector, MotionSelector
from scope_wm.train.distill import load_head, train_selector
from scope_wm.train.finished import open_teacher
from scope_wm.train.recorder import read_metrics
from scope_wm.train.sparse import TrainSparseSettings, sparse_model, train_sparse
from scope_wm.train.teacher import train_teacher
from scope_wm.types import UsageError


def sparse(world: World, out: Path, **changes: object) -> TrainSparseSettings:
    settings = TrainSparseSettings(
        teacher=world.teacher.out,
        data=world.data,
        tokens=str(world.tokens),
        out=out,
        k=20,
        selector=str(world.selector.out),
        fit=replace(FIT, max_samples=16),
        run=RUN,
    )
    return replace(settings, **changes)


def test_head_and_embeddings_stay_as_the_head_was_trained_with_them(world: World, tmp_path: Path) -> None:
    train_sparse(sparse(world, tmp_path / "k20"))
    model = TrainedModel.from_pretrained(tmp_path / "k20").world_model
    teacher = TrainedModel.from_pretrained(world.teacher.out).world_model
    head, _ = load_head(world.selector.out)
    assert isinstance(model.selector, DistilledSelector)
    for mine, theirs in ((model.fuse, teacher.fuse), (model.selector.head, head)):
        assert all(
            torch.equal(a, b)
            for a, b in zip(mine.state_dict().values(), theirs.state_dict().values(), strict=True)
        )
    assert not torch.equal(model.predictor.positions, teacher.predictor.positions)


def test_predictor_and_background_are_trained_together(world: World, tmp_path: Path) -> None:
    settings = sparse(world, tmp_path / "k20")
    train_sparse(settings)
    teacher = open_teacher(settings.teacher, settings.data, settings.tokens, "cpu")
    torch.manual_seed(settings.fit.seed)
    fresh = sparse_model(settings, teacher, teacher.experience()).world_model
    model = TrainedModel.from_pretrained(tmp_path / "k20").world_model
    assert torch.equal(fresh.fuse.action.weight, model.fuse.action.weight)
    for part in ("predictor", "background"):
        before, after = (dict(getattr(m, part).named_parameters()) for m in (fresh, model))
        assert all(not torch.equal(before[name], after[name]) for name in before), part
    figures = read_header(tmp_path / "k20")[0]["made"]["figures"]
    assert set(figures) >= {"one_step_of_copy", "rollout_of_copy", "background_of_copy", "oracle_of_copy"}


def command(settings: TrainSparseSettings) -> list[str]:
    """Return the command line of some settings."""
    options = {"teacher": settings.teacher, "data": settings.data, "tokens": settings.tokens}
    options |= {"out": settings.out, "k": settings.k, "selector": settings.selector}
    options |= {"background.kind": settings.background.kind, "fit.max-samples": settings.fit.max_samples}
    options |= {"fit.batch": settings.fit.batch, "fit.optimiser.lr": settings.fit.optimiser.lr}
    words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["train", "sparse", *words, "--fit.validations", "1", "--run.device", "cpu"]


@pytest.mark.parametrize("background", ["copy", "foreground-delta", "cross-attention"])
@pytest.mark.parametrize("selector", ["random", "latin-hypercube", "distilled", "motion"])
def test_every_selection_trains_with_every_background_and_plans(
    world: World, tmp_path: Path, selector: str, background: str
) -> None:
    chosen = str(world.selector.out) if selector == "distilled" else selector
    asked = sparse(world, tmp_path / "model", selector=chosen, background=BackgroundConfig(kind=background))
    assert main(command(asked)) == 0
    trained = TrainedModel.from_pretrained(asked.out)
    assert (trained.config.selector.kind, trained.config.background.kind) == (selector, background)
    if isinstance(trained.world_model.selector, MotionSelector):
        assert trained.world_model.selector.mean.std() > 0
    figures = read_header(asked.out)[0]["made"]["figures"]
    assert (figures["background_of_copy"] == pytest.approx(1.0)) == (background == "copy")
    model = load_latent_model(ModelSettings(model=str(asked.out), device="cpu"))
    now, goal = torch.randn(2, 1, 196, 6)
    seen, wanted = (Seen(visual=visual, proprio=torch.zeros(1, 2)) for visual in (now, goal))
    costs = model.cost(seen, wanted)(torch.randn(1, 3, 2, model.action_width))
    assert costs.isfinite().all()
    assert len(costs.unique()) == 3


@pytest.mark.parametrize("k", [1, 196])
def test_any_number_of_tokens_may_be_kept(world: World, tmp_path: Path, k: int) -> None:
    train_sparse(sparse(world, tmp_path / "model", k=k))
    assert TrainedModel.from_pretrained(tmp_path / "model").config.selector.k == k
    figures = read_header(tmp_path / "model")[0]["made"]["figures"]
    assert ("background_of_copy" in figures) == (k == 1)


@pytest.mark.parametrize("changes", [{"k": 0}, {"k": 197}, {"background": BackgroundConfig(kind="ignored")}])
def test_what_cannot_be_is_refused_before_anything_is_written(
    world: World, tmp_path: Path, changes: dict[str, object]
) -> None:
    with pytest.raises(UsageError, match=r"expected K between 1 and 196|expected the selector random"):
        train_sparse(sparse(world, tmp_path / "model", **changes))
    assert not (tmp_path / "model").exists()


def test_a_selector_of_another_teacher_is_refused(world: World, tmp_path: Path) -> None:
    other = replace(
        world.teacher, out=tmp_path / "other", fit=replace(world.teacher.fit, seed=1, max_samples=8)
    )
    train_teacher(other)
    with pytest.raises(UsageError, match="distilled from another dense model"):
        train_sparse(sparse(world, tmp_path / "k20", teacher=other.out))
    assert not (tmp_path / "k20").exists()


def test_a_sparse_model_is_no_teacher(world: World, tmp_path: Path) -> None:
    train_sparse(sparse(world, tmp_path / "k20"))
    with pytest.raises(UsageError, match="expected a dense model"):
        train_selector(replace(world.selector, teacher=tmp_path / "k20", out=tmp_path / "selector"))


def test_a_selector_that_is_not_there_is_refused(world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a selector"):
        train_sparse(sparse(world, tmp_path / "k20", selector=str(tmp_path / "nothing")))
    assert not (tmp_path / "k20").exists()


def test_a_random_selection_resumes_as_if_nothing_had_been(world: World, tmp_path: Path) -> None:
    fit = replace(FIT, max_samples=48, validations=2)
    whole = sparse(world, tmp_path / "whole", selector="random", fit=fit)
    train_sparse(whole)
    broken = sparse(world, tmp_path / "broken", selector="random", fit=fit)
    reads = []

    def read(tokens: TokenCache, numbers: np.ndarray) -> np.ndarray:
        reads.append(len(numbers))
        if reads.count(8 * 3) > 4:  # a batch of windows, each of three frames
            raise KeyboardInterrupt
        return tokens._tokens[numbers]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TokenCache, "read", read)
        with pytest.raises(KeyboardInterrupt):
            train_sparse(replace(broken, run=replace(RUN, checkpoint_seconds=0.0)))
    assert (tmp_path / "broken" / "checkpoint.safetensors").exists()
    train_sparse(broken)
    told = [[line | {"seconds": 0} for line in read_metrics(tmp_path / name)] for name in ("whole", "broken")]
    assert told[0] == told[1]
