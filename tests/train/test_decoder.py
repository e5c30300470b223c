from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from scope_wm.data.collect import CollectSettings, collect
from scope_wm.data.encode import EncodeSettings, encode
from scope_wm.data.split import open_splits
from scope_wm.data.token_cache import TokenCache
from scope_wm.model.decoder import Decoder, DecoderConfig
from scope_wm.model.student import Student, StudentConfig
from scope_wm.train.decoder import (
    DrawingLoss,
    DrawnFrames,
    TrainDecoderSettings,
    drawing_figures,
    held_out_batches,
    train_decoder,
)
from scope_wm.train.loop import FitSettings, OptimiserSettings
from scope_wm.train.recorder import RunSettings, read_metrics
from scope_wm.types import MadeOtherwise, UsageError

RATE = OptimiserSettings(lr=4e-3, schedule="cosine", clip=1.0)
FIT = FitSettings(optimiser=RATE, epochs=100, max_samples=48, batch=4, validations=2)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> TrainDecoderSettings:
    """A decoder trained for a few steps; for reading only."""
    folder = tmp_path_factory.mktemp("decoder")
    torch.manual_seed(0)
    Student(StudentConfig(dim=8, width=16, stages=1, heads=2)).save_pretrained(folder / "student")
    collect(CollectSettings(task="wall", episodes=10, length=4, out=folder / "data", workers=1))
    encode(
        EncodeSettings(
            data=folder / "data", out=folder / "tokens", encoder=str(folder / "student"), workers=1
        )
    )
    settings = TrainDecoderSettings(
        data=folder / "data",
        tokens=str(folder / "tokens"),
        out=folder / "decoder",
        encoder=str(folder / "student"),
        fit=FIT,
        run=RunSettings(device="cpu", log_every=2),
    )
    train_decoder(settings)
    return settings


def test_training_lowers_the_held_out_error_and_keeps_the_best(trained: TrainDecoderSettings) -> None:
    judged = [line for line in read_metrics(trained.out) if "PSNR" in line]
    assert [line["step"] for line in judged] == [6, 12]
    assert judged[1]["error"] < judged[0]["error"]
    validation = open_splits(trained.data).validation
    frames = DrawnFrames.of(validation, TokenCache.open(Path(trained.tokens)))
    decoder, held_out = Decoder.from_pretrained(trained.out), held_out_batches(frames)
    error = drawing_figures(DrawingLoss(decoder), held_out)["error"]
    assert error == pytest.approx(judged[1]["error"], rel=1e-5)
    untrained = drawing_figures(DrawingLoss(Decoder(decoder.config)), held_out)["error"]
    assert error < 0.5 * untrained


def test_only_validation_frames_are_held_out(trained: TrainDecoderSettings) -> None:
    splits, tokens = open_splits(trained.data), TokenCache.open(Path(trained.tokens))
    training, held_out = (DrawnFrames.of(split, tokens) for split in splits)
    assert len(training) == 36
    assert len(held_out) == 4
    assert not set(training.numbers) & set(held_out.numbers)


def test_a_sample_is_a_frame_with_its_own_tokens(trained: TrainDecoderSettings) -> None:
    split, cache = open_splits(trained.data).training, TokenCache.open(Path(trained.tokens))
    frames = DrawnFrames.of(split, cache)
    tokens, images = frames.batch(np.array([7, 2]))
    numbers = frames.numbers[[7, 2]]
    assert np.array_equal(tokens.numpy(), cache.read(numbers))
    assert np.array_equal(images.numpy(), split.store.frames(numbers))


def test_grey_drawings_of_black_and_white_are_as_good_as_the_mean_frame() -> None:
    decoder = Decoder(DecoderConfig(visual=2, blocks=1, coarse=8, middle=8, fine=8))
    for parameter in decoder.parameters():
        nn.init.zeros_(parameter)  # the sigmoid of 0 is grey
    frames = torch.stack([torch.zeros(224, 224, 3), torch.full((224, 224, 3), 255.0)]).byte()
    figures = drawing_figures(DrawingLoss(decoder), [(torch.zeros(2, 196, 2).half(), frames)])
    assert figures == pytest.approx({"error": 0.25, "PSNR": 6.0206, "error_of_mean_frame": 1.0}, rel=1e-4)


def test_batches_of_different_size_weigh_by_their_frames() -> None:
    decoder = Decoder(DecoderConfig(visual=2, blocks=1, coarse=8, middle=8, fine=8)).eval()
    frames = torch.randint(0, 256, (3, 224, 224, 3), generator=torch.Generator().manual_seed(0)).byte()
    tokens, loss = torch.randn(3, 196, 2), DrawingLoss(decoder)
    whole = drawing_figures(loss, [(tokens, frames)])
    parts = drawing_figures(loss, [(tokens[:2], frames[:2]), (tokens[2:], frames[2:])])
    assert parts == pytest.approx(whole, rel=1e-5)


def test_tokens_made_on_the_fly_give_the_same_decoder(trained: TrainDecoderSettings, tmp_path: Path) -> None:
    short = replace(FIT, max_samples=4, validations=1)
    for name, tokens in (("cached", trained.tokens), ("live", "on-the-fly")):
        train_decoder(replace(trained, out=tmp_path / name, tokens=tokens, fit=short))
    cached, live = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("cached", "live"))
    assert cached == live


def test_a_finished_decoder_is_left_and_another_is_not_overwritten(
    trained: TrainDecoderSettings, capsys: pytest.CaptureFixture[str]
) -> None:
    file = trained.out / "model.safetensors"
    written = file.stat().st_mtime_ns
    train_decoder(trained)
    assert "is finished: error " in capsys.readouterr().out
    with pytest.raises(MadeOtherwise, match=r"fit\.seed: 0 there, 1 here"):
        train_decoder(replace(trained, fit=replace(FIT, seed=1)))
    assert file.stat().st_mtime_ns == written


def test_a_store_without_validation_episodes_is_refused(
    trained: TrainDecoderSettings, tmp_path: Path
) -> None:
    collect(CollectSettings(task="wall", episodes=1, length=4, out=tmp_path / "one", workers=1))
    with pytest.raises(UsageError, match="too few episodes"):
        train_decoder(replace(trained, data=tmp_path / "one", tokens="on-the-fly", out=tmp_path / "decoder"))
