import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.train.conftest import FIT, RUN, World

from scope_wm.cli import main
from scope_wm.data.collect import CollectSettings, collect
from scope_wm.model.architecture import BackgroundConfig, build
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.model.rollout import rollout
from scope_wm.model.world_model import prediction_loss
from scope_wm.records import to_json
from scope_wm.train.finished import FinishedModel, open_model
from scope_wm.train.refine import RolloutLoss, TrainRefineSettings, freeze, train_refine
from scope_wm.train.sparse import TrainSparseSettings, train_sparse
from scope_wm.types import UsageError


@pytest.fixture(scope="module")
def sparse(world: World, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sparse model, hardly trained."""
    out = tmp_path_factory.mktemp("sparse") / "k20"
    train_sparse(
        TrainSparseSettings(
            teacher=world.teacher.out,
            data=world.data,
            tokens=str(world.tokens),
            out=out,
            k=20,
            selector=str(world.selector.out),
            fit=FIT,
            run=RUN,
        )
    )
    return out


def settings(world: World, model: Path, out: Path, **changes: object) -> TrainRefineSettings:
    asked = TrainRefineSettings(
        model=model, data=world.data, tokens=str(world.tokens), out=out, fit=FIT, run=RUN
    )
    return replace(asked, **changes)


def opened(world: World, model: Path) -> FinishedModel:
    return open_model(model, world.data, str(world.tokens), "cpu")


def test_with_one_frame_it_is_the_loss_of_one_step(world: World, sparse: Path) -> None:
    found = opened(world, sparse)
    model, windows = found.load().world_model, found.experience(1).training
    visual, proprio, actions = (part.float() for part in windows.batch([0, 5, 9]))
    expected = prediction_loss(model, visual, proprio, actions)
    torch.testing.assert_close(RolloutLoss(model)(visual, proprio, actions), expected)


def test_every_imagined_frame_counts_alike_and_action_channels_do_not(world: World, sparse: Path) -> None:
    found = opened(world, sparse)
    model, windows = found.load().world_model, found.experience(3).training
    visual, proprio, actions = windows.batch([0, 5])
    visual = visual.float()
    frames = rollout(model, visual[:, 0], proprio[:, 0], actions)
    fuse, errors = model.fuse, []
    for step in range(3):
        seen, felt, _ = frames[:, step].split([fuse.config.visual, 3, 3], dim=-1)
        wrong = [seen - visual[:, step + 1], felt - fuse.proprio(proprio[:, step + 1]).unsqueeze(1)]
        errors.append(torch.cat(wrong, dim=-1).square().mean())
    loss, expected = RolloutLoss(model)(visual, proprio, actions), torch.stack(errors).mean()
    torch.testing.assert_close(loss, expected)
    learned = [*model.predictor.parameters(), *model.background.parameters()]
    gradients = (torch.autograd.grad(value, learned) for value in (loss, expected))
    for got, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(got, wanted)


def test_the_gradient_goes_through_the_whole_rollout(world: World, sparse: Path) -> None:
    """To a model that sees one frame, the first action matters for the third only through those between."""
    found = opened(world, sparse)
    torch.manual_seed(0)
    model = build(replace(found.config, history=1))
    visual, proprio, actions = found.experience(3).training.batch([0, 5])
    actions.requires_grad_(True)
    loss = RolloutLoss(model)
    three, two = loss(visual, proprio, actions), loss(visual[:, :3], proprio[:, :3], actions[:, :2])
    (through,) = torch.autograd.grad(3 * three - 2 * two, actions)  # of the third frame's error
    first, _, last = through.norm(dim=-1).unbind(1)
    assert (first > 0.01 * last).all()


def test_only_predictor_and_background_are_trained(world: World, sparse: Path) -> None:
    model = opened(world, sparse).load().world_model
    freeze(model)
    parts = {name.split(".")[0] for name, value in model.named_parameters() if value.requires_grad}
    assert parts == {"predictor", "background"}


@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_predictor_and_background_learn_and_the_rest_stays(
    world: World, sparse: Path, tmp_path: Path, kind: str
) -> None:
    source = sparse if kind == "sparse" else world.teacher.out
    still = replace(FIT, optimiser=replace(FIT.optimiser, lr=5e-4, weight_decay=0.0), max_samples=320)
    train_refine(settings(world, source, tmp_path / "refined", fit=still))
    before, after = (TrainedModel.from_pretrained(path) for path in (source, tmp_path / "refined"))
    assert to_json(after.config) == to_json(before.config)
    old, new = (model.world_model.state_dict() for model in (before, after))
    for name, value in old.items():
        learned = name.startswith(("predictor.", "background."))
        assert torch.equal(value, new[name]) != learned, name


def test_what_is_imagined_gets_better(world: World, sparse: Path, tmp_path: Path) -> None:
    fit = replace(FIT, max_samples=640, validations=4)
    train_refine(settings(world, sparse, tmp_path / "refined", fit=fit))
    before, after = (read_header(path)[0]["made"]["figures"] for path in (sparse, tmp_path / "refined"))
    assert after["rollout_of_copy"] < before["rollout_of_copy"]


def test_weights_that_only_got_worse_are_not_kept(world: World, sparse: Path, tmp_path: Path) -> None:
    ruinous = replace(FIT, optimiser=replace(FIT.optimiser, lr=10.0), max_samples=8, validations=1)
    train_refine(settings(world, sparse, tmp_path / "refined", fit=ruinous))
    before, after = (
        TrainedModel.from_pretrained(path).world_model for path in (sparse, tmp_path / "refined")
    )
    for name, value in before.state_dict().items():
        assert torch.equal(value, after.state_dict()[name]), name


def test_the_record_tells_how_the_model_was_made_before(world: World, sparse: Path, tmp_path: Path) -> None:
    asked = settings(world, sparse, tmp_path / "refined", frames=2)
    train_refine(asked)
    source, _ = read_header(sparse)
    made = read_header(asked.out)[0]["made"]
    assert (made["stage"], made["settings"]["frames"]) == ("refine", 2)
    assert made["inputs"]["model"] == source["weights"]
    assert made["before"] == source["made"]
    with pytest.raises(UsageError, match="frames: 2 there, 3 here"):
        train_refine(replace(asked, frames=3))


def test_data_that_the_model_was_not_trained_on_is_pointed_out(
    world: World, sparse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_refine(settings(world, sparse, tmp_path / "same"))
    assert "was not trained on" not in capsys.readouterr().err
    other = tmp_path / "other"
    shutil.copytree(sparse, other)
    header = json.loads((other / "config.json").read_text())
    header["made"]["inputs"]["tokens"] = "of other episodes"
    (other / "config.json").write_text(json.dumps(header))
    train_refine(settings(world, other, tmp_path / "refined"))
    assert f"{other} was not trained on {world.data}" in capsys.readouterr().err


def test_the_command_refines_and_leaves_what_is_finished(
    world: World, sparse: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["train", "refine", "--model", str(sparse), "--data", str(world.data)]
    words += ["--tokens", str(world.tokens), "--out", str(tmp_path / "refined"), "--run.device", "cpu"]
    words += ["--fit.max-samples", "16", "--fit.batch", "8", "--fit.validations", "1"]
    assert main(words) == 0
    weights = (tmp_path / "refined" / "model.safetensors").read_bytes()
    assert main(words) == 0
    assert (tmp_path / "refined" / "model.safetensors").read_bytes() == weights
    assert capsys.readouterr().out.count("is finished") == 2
    with pytest.raises(SystemExit, match="2"):
        main([*words, "--frames", "0"])
    assert "expected --frames of at least 1" in capsys.readouterr().err


def test_what_cannot_be_refined_is_refused_before_anything_is_written(world: World, tmp_path: Path) -> None:
    other = tmp_path / "maze"
    collect(CollectSettings(task="point_maze", episodes=5, length=20, out=other, workers=1))
    with pytest.raises(UsageError, match=r"expected data of wall, the task of .* is of point_maze"):
        train_refine(settings(world, world.teacher.out, tmp_path / "refined", data=other))
    with pytest.raises(UsageError, match=r"expected --frames of at least 2, .* got 1"):
        train_refine(settings(world, world.teacher.out, tmp_path / "refined", frames=1))
    patches = tmp_path / "patches"
    train_sparse(
        TrainSparseSettings(
            teacher=world.teacher.out,
            data=world.data,
            tokens=str(world.tokens),
            out=patches,
            k=20,
            selector="random",
            background=BackgroundConfig(kind="ignored"),
            fit=replace(FIT, max_samples=16),
            run=RUN,
        )
    )
    with pytest.raises(UsageError, match="expected a model that imagines whole frames"):
        train_refine(settings(world, patches, tmp_path / "refined"))
    assert not (tmp_path / "refined").exists()
