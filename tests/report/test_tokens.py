from pathlib import Path

import imageio.v3 as iio
import numpy as np
import pytest
import torch

from scope_wm.report.tokens import (
    TokensSettings,
    colours,
    draw_tokens,
    sample_frames,
    sheet,
    smooth_trend,
)
from scope_wm.tasks import TASKS


def test_a_cubic_over_the_grid_is_all_trend_and_an_object_is_not() -> None:
    row, column = torch.meshgrid(torch.linspace(-1, 1, 14), torch.linspace(-1, 1, 14), indexing="ij")
    cubic = (2 * row**3 - row * column**2 + column + 0.5).flatten()
    stripes = torch.tensor([1.0, -1.0]).repeat(98)
    mean = torch.stack([cubic, stripes], dim=1)
    trend = smooth_trend(mean)
    torch.testing.assert_close(trend[:, 0], cubic, atol=1e-5, rtol=1e-5)
    assert trend[:, 1].square().mean() < 0.1


def test_colours_show_the_patches_of_an_object() -> None:
    tokens = 0.01 * torch.randn(4, 196, 8, generator=torch.Generator().manual_seed(0))
    tokens[:, 30, 2] += 5.0  # row 2, column 2
    tokens[:, 31, 2] += 5.0
    tokens[:, 32, 2] += 5.0
    tokens[:, 33, 2] += 5.0
    pictures = colours(tokens)
    assert pictures.shape == (4, 224, 224, 3)
    patches = pictures[:, 8::16, 8::16].reshape(4, 196, 3).astype(int)
    np.testing.assert_array_equal(pictures, patches.reshape(4, 14, 14, 3).repeat(16, 1).repeat(16, 2))
    inside, outside = patches[:, 30:34, 0].mean(), np.delete(patches, range(30, 34), axis=1)[..., 0].mean()
    assert inside - outside > 200


def test_frames_are_of_different_episodes_and_the_same_for_the_same_seed() -> None:
    first = sample_frames(TASKS["wall"](), 3, seed=5)
    np.testing.assert_array_equal(first, sample_frames(TASKS["wall"](), 3, seed=5))
    assert len(np.unique(first.reshape(3, -1), axis=0)) == 3


def test_the_sheet_shows_every_view_of_every_frame_once() -> None:
    pictures = np.zeros((2, 2, 3, 224, 224, 3), np.uint8)
    pictures[..., 0] = np.arange(100, 112).reshape(2, 2, 3, 1, 1)  # twelve reds
    canvas = sheet({"wall": pictures[0], "rope": pictures[1]})
    for red in range(100, 112):
        rows, columns = np.nonzero((canvas == (red, 0, 0)).all(-1))
        assert len(rows) == 224 * 224
        assert np.ptp(rows) == np.ptp(columns) == 223


def test_the_picture_is_drawn_for_any_encoder(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.Dinov2Config(
        hidden_size=16, num_hidden_layers=2, num_attention_heads=2, image_size=56, patch_size=14
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    out = tmp_path / "pictures" / "tokens.png"
    draw_tokens(TokensSettings(encoder=str(tmp_path), out=out, layer=2, frames=2, columns=1))
    image = iio.imread(out)
    assert image.shape[0] > 5 * 224
    assert image.shape[1] > 3 * 224
    assert (image[0] == 255).all()
