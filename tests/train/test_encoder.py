import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from scope_wm.data.collect import CollectSettings, collect
from scope_wm.model.encoder import EncoderConfig, HubEncoder
from scope_wm.model.encoders import open_encoder
from scope_wm.model.student import StudentConfig, StudentEncoder
from scope_wm.train import encoder
from scope_wm.train.encoder import TrainEncoderSettings, all_targets, fit_student, train_encoder
from scope_wm.train.encoder_targets import Part, Targets, alter, choose_parts
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings
from scope_wm.types import UsageError

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> TrainEncoderSettings:
    folder = tmp_path_factory.mktemp("encoder")
    torch.manual_seed(0)
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=196, patch_size=14
    )
    transformers.Dinov2Model(config).save_pretrained(folder / "teacher")
    stores = []
    for task in ("wall", "push_t"):
        stores.append(folder / task)
        collect(CollectSettings(task=task, episodes=10, length=20, out=stores[-1], workers=1))
    return TrainEncoderSettings(
        teacher=str(folder / "teacher"),
        data=tuple(stores),
        out=folder / "student",
        layer=2,
        frames=24,
        held_out=8,
        student=StudentConfig(dim=4, width=16, stages=1, heads=2),
        fit=FitSettings(optimiser=OptimiserSettings(lr=5e-3), epochs=8, batch=8, validations=2),
        run=RunSettings(device="cpu", log_every=1),
    )


@pytest.fixture(scope="module")
def student(settings: TrainEncoderSettings) -> StudentEncoder:
    train_encoder(settings)
    opened = open_encoder(EncoderConfig(source=str(settings.out)))
    assert isinstance(opened, StudentEncoder)
    return opened


def parts_of(settings: TrainEncoderSettings) -> tuple[list[Part], list[Part]]:
    return choose_parts(list(settings.data), settings.frames, settings.held_out, settings.fit.seed)


@pytest.fixture(scope="module")
def targets(settings: TrainEncoderSettings, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The targets that a training makes and removes."""
    folder = tmp_path_factory.mktemp("targets")
    teacher = HubEncoder(EncoderConfig(source=settings.teacher, layer=settings.layer))
    all_targets(teacher, parts_of(settings), settings.student.dim, folder)
    return folder


def test_the_student_learns_the_targets(
    settings: TrainEncoderSettings, student: StudentEncoder, targets: Path
) -> None:
    lines = [json.loads(line) for line in (settings.out / "metrics.jsonl").read_text().splitlines()]
    errors = [line["error"] for line in lines if "error" in line]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert errors[-1] < errors[0]
    assert losses[-1] < 0.7 * losses[0]
    frames, expected, _ = Targets(targets, parts_of(settings)[0]).batch(np.arange(24))
    untrained = StudentEncoder(type(student.student.network)(settings.student))
    errors = [float((one(frames) - expected).square().mean()) for one in (student, untrained)]
    assert errors[0] < 0.7 * errors[1]


def test_targets_are_removed_when_the_student_is_finished(
    settings: TrainEncoderSettings, student: StudentEncoder
) -> None:
    left = settings.out / "targets"
    assert not left.exists()
    left.mkdir()  # as if the run had been killed in between
    (left / "pca.safetensors").write_bytes(b"gigabytes")
    train_encoder(settings)
    assert not left.exists()


def test_the_loss_is_weighted_by_clean_frames_to_learn_from(
    settings: TrainEncoderSettings, targets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights: list[torch.Tensor] = []
    monkeypatch.setattr(encoder, "Fit", lambda **given: weights.append(given["loss"].variance) or dict)
    fit_student(replace(settings, out=tmp_path), parts_of(settings), targets)
    clean = [np.load(targets / f"{task}-training-0000-tokens.npy")[::2] for task in ("wall", "push_t")]
    expected = [tokens.astype(np.float64).var(axis=0).mean() for tokens in clean]
    assert weights[0].tolist() == pytest.approx(expected, rel=1e-3)


def test_a_student_tells_how_it_was_made(settings: TrainEncoderSettings, student: StudentEncoder) -> None:
    made = json.loads((settings.out / "config.json").read_text())["made"]
    assert made["settings"]["layer"] == 2
    assert set(made["inputs"]) == {"teacher", "wall-training", "push_t-training"}
    names = {"error", "R2", "R2_beyond_position", "R2_beyond_position/wall-validation"}
    assert names <= set(made["figures"])


def test_every_second_frame_to_learn_from_is_altered_and_none_to_judge_with(
    settings: TrainEncoderSettings, student: StudentEncoder
) -> None:
    training, validation = choose_parts(list(settings.data), settings.frames, settings.held_out, 0)
    for parts, expected in ((training, [False, True] * 12), (validation, [False] * 8)):
        for part in parts:
            rows = np.arange(len(part.numbers))
            clean = part.split.store.frames(part.numbers)
            changed = [not np.array_equal(a, b) for a, b in zip(part.frames(rows), clean, strict=True)]
            assert changed == expected
            assert np.array_equal(part.frames(rows[3:5]), part.frames(rows)[3:5])


def test_training_and_judging_frames_are_of_other_episodes(settings: TrainEncoderSettings) -> None:
    training, validation = choose_parts(list(settings.data), 200, 200, 0)
    for learned, judged in zip(training, validation, strict=True):
        store = learned.split.store
        assert not set(store.episode_of(learned.numbers)) & set(store.episode_of(judged.numbers))


def test_an_altered_frame_shows_the_same_scene(settings: TrainEncoderSettings) -> None:
    image = np.zeros((224, 224, 3), np.uint8)
    image[100:120, 50:70] = 200
    altered = alter(image, np.random.default_rng(0))
    rows, columns = np.nonzero(altered[..., 0] > 100)
    assert abs(rows.mean() - 109.5) <= 12
    assert abs(columns.mean() - 59.5) <= 12
    assert len(rows) == 400


def test_no_store_is_no_training(settings: TrainEncoderSettings) -> None:
    with pytest.raises(UsageError, match="--data"):
        replace(settings, data=())
