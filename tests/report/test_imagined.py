from pathlib import Path

import numpy as np
import pytest
import torch

from scope_wm.data.split import open_splits
from scope_wm.data.token_cache import TokenCache
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.decoder import Decoder, to_uint8
from scope_wm.model.rollout import rollout
from scope_wm.report.imagined import errors_of_copy, imagined, liveliest
from scope_wm.report.run_directory import open_held_out


def test_the_error_is_1_for_a_copy_and_0_for_the_truth() -> None:
    visual = torch.randn(4, 6, 3)
    assert errors_of_copy(visual[:1].expand(3, 6, 3), visual) == pytest.approx([1, 1, 1])
    assert errors_of_copy(visual[1:], visual) == [0, 0, 0]
    assert errors_of_copy((visual[:1] + visual[1:]) / 2, visual) == pytest.approx([0.25, 0.25, 0.25])


def test_the_liveliest_window_ends_farthest_from_its_beginning(tiny_run: Path) -> None:
    config = TrainedModel.from_pretrained(tiny_run / "teacher").config
    window, frames = liveliest(config, open_held_out(tiny_run, config.encoder))
    split, cache = open_splits(tiny_run / "data").validation, TokenCache.open(tiny_run / "tokens")
    (episode,) = split.episodes
    firsts = split.store.first[episode] + np.arange(30 - 25)  # five actions of five steps
    begin, end = (cache.read(firsts + steps).astype(np.float64) for steps in (0, 25))
    first = firsts[np.square(end - begin).mean((1, 2)).argmax()]
    np.testing.assert_array_equal(frames, split.store.frames(first + 5 * np.arange(6)))
    np.testing.assert_array_equal(window.visual.numpy(), cache.read(first + 5 * np.arange(6)))
    assert window.actions.shape == (5, 10)


def test_a_row_shows_the_decoded_rollout_of_its_model_above_the_real_frames(tiny_run: Path) -> None:
    trained, decoder = (
        TrainedModel.from_pretrained(tiny_run / "sparse-k32"),
        Decoder.from_pretrained(tiny_run / "decoder"),
    )
    window, frames = liveliest(trained.config, open_held_out(tiny_run, trained.config.encoder))
    model, visual = trained.world_model, window.visual.float()
    canvas = imagined({"sparse-k32": model}, decoder, window, frames)
    with torch.no_grad():
        dreamt = rollout(model, visual[:1], window.proprio[:1], window.actions[None])[0, -1, :, :8]
        drawn = to_uint8(decoder(torch.stack([dreamt, visual[-1]]))).numpy()
    dreamt_top, decoded_top, real_top = (row_of(canvas, picture) for picture in (*drawn, frames[-1]))
    assert dreamt_top < decoded_top < real_top


def row_of(canvas: np.ndarray, picture: np.ndarray) -> int:
    """Return where a picture of the last column begins."""
    left = canvas.shape[1] - 24 - 224
    column = canvas[:, left : left + 224].astype(int)
    tops = [
        top
        for top in range(len(column) - 223)
        if np.abs(column[top : top + 224 : 16] - picture[::16]).max() <= 1
        and np.abs(column[top : top + 224] - picture).max() <= 1
    ]
    assert len(tops) == 1
    return tops[0]
