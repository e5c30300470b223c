from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.train.conftest import FIT, RUN, World

from scope_wm.cli import main
from scope_wm.evaluate.run import read_run
from scope_wm.model.architecture import BackgroundConfig
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import prediction_loss
from scope_wm.planning.latent import Seen
from scope_wm.planning.load import ModelSettings, load_latent_model
from scope_wm.train.dynamics import GroupedLoss, held_out_figures
from scope_wm.train.finished import open_teacher
from scope_wm.train.recorder import read_metrics
from scope_wm.train.sparse import TrainSparseSettings, sparse_model, train_sparse
from scope_wm.types import UsageError

K = 40


@pytest.fixture(scope="module")
def settings(world: World, tmp_path_factory: pytest.TempPathFactory) -> TrainSparseSettings:
    """The baseline, trained for a little while."""
    settings = TrainSparseSettings(
        teacher=world.teacher.out,
        data=world.data,
        tokens=str(world.tokens),
        out=tmp_path_factory.mktemp("sparse-imagination") / "model",
        k=K,
        selector="random",
        background=BackgroundConfig(kind="ignored"),
        fit=replace(FIT, max_samples=1600, validations=2),
        run=RUN,
    )
    train_sparse(settings)
    return settings


def test_it_learns(settings: TrainSparseSettings) -> None:
    teacher = open_teacher(settings.teacher, settings.data, settings.tokens, "cpu")
    experience = teacher.experience()
    fresh = sparse_model(settings, teacher, experience).world_model
    at_first = held_out_figures(fresh, experience.held_out)
    assert at_first["rollout_of_copy"] == pytest.approx(1.0)
    figures = read_header(settings.out)[0]["made"]["figures"]
    losses = [line["loss"] for line in read_metrics(settings.out) if "loss" in line]
    assert losses[-1] < 0.9 * losses[99]  # means of the last hundred steps and of the first
    assert "background_of_copy" not in figures


def test_a_token_sees_about_k_tokens_in_training(settings: TrainSparseSettings) -> None:
    loss = GroupedLoss(TrainedModel.from_pretrained(settings.out).world_model)
    everything = torch.arange(196).expand(8, 2, 196)
    groups = loss.draw(everything)
    assert torch.equal(groups[:, 0], groups[:, 1])
    sizes = torch.stack([torch.bincount(group, minlength=5) for group in groups[:, 0]])
    assert sizes.shape == (8, 5)
    assert sizes.float().mean() == 196 / 5
    assert sizes.min() > 15


def test_every_token_is_learned_from(settings: TrainSparseSettings) -> None:
    model = TrainedModel.from_pretrained(settings.out).world_model
    tokens = model.fuse.config
    visual = torch.randn(2, 3, 196, tokens.visual)
    proprio, actions = torch.randn(2, 3, tokens.proprio), torch.randn(2, 2, tokens.action)
    loss = GroupedLoss(model)
    grouped = loss(visual, proprio, actions)
    grouped.backward()
    gradient = model.predictor.positions.grad
    assert gradient is not None
    assert (gradient.norm(dim=-1) > 0).all()
    assert grouped.item() != pytest.approx(
        prediction_loss(loss.everything, visual, proprio, actions).item(), rel=1e-6
    )


def test_only_drawn_patches_are_imagined_and_compared(settings: TrainSparseSettings) -> None:
    model = load_latent_model(ModelSettings(model=str(settings.out), device="cpu"))
    now, goal = (Seen(visual=torch.randn(1, 196, 6), proprio=torch.randn(1, 2)) for _ in range(2))
    candidates = torch.randn(1, 4, 2, model.action_width)
    model.reseed([3])
    patches = model.world_model.selector.draw((), 196, torch.device("cpu"))
    others = torch.ones(196, 1).index_fill(0, patches, 0.0)

    def costs(seed: int, spoilt: float = 0.0) -> torch.Tensor:
        model.reseed([seed])
        noise = spoilt * others
        seen, wanted = (replace(one, visual=one.visual + noise) for one in (now, goal))
        cost = model.cost(seen, wanted)
        assert cost.now.visual.shape == (1, K, 6)
        return cost(candidates)

    assert torch.equal(costs(3), costs(3, spoilt=100.0))
    assert not torch.equal(costs(3), costs(4))


def test_a_whole_frame_is_not_imagined(settings: TrainSparseSettings) -> None:
    model = TrainedModel.from_pretrained(settings.out).world_model
    tokens = model.fuse.config
    with pytest.raises(UsageError, match="no whole frames"):
        rollout(
            model,
            torch.randn(1, 196, tokens.visual),
            torch.randn(1, tokens.proprio),
            torch.randn(1, 1, tokens.action),
        )


def test_it_is_trained_and_evaluated_by_commands(settings: TrainSparseSettings, tmp_path: Path) -> None:
    words = f"--teacher {settings.teacher} --data {settings.data} --tokens {settings.tokens} --k {K} "
    words += "--selector latin-hypercube --background.kind ignored --fit.max-samples 16 --fit.batch 8 "
    words += f"--fit.optimiser.lr 2e-3 --fit.validations 1 --run.device cpu --out {tmp_path / 'model'}"
    assert main(["train", "sparse", *words.split()]) == 0
    words = f"--task wall --model {tmp_path / 'model'} --instances 2 --workers 1 --samples 5 --elites 2 "
    words += f"--horizon 1 --max-steps 1 --device cpu --out {tmp_path / 'run'}"
    assert main(["evaluate", *words.split()]) == 0
    assert len(read_run(tmp_path / "run").records) == 2
