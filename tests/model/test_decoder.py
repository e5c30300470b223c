import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.decoder import Decoder, DecoderConfig, to_uint8
from scope_wm.types import UsageError

SMALL = DecoderConfig(visual=5, blocks=1, coarse=16, middle=8, fine=8)


def make(config: DecoderConfig = SMALL) -> Decoder:
    """Make a decoder in which no weight has its initial value."""
    torch.manual_seed(0)
    decoder = Decoder(config)
    for parameter in decoder.parameters():
        nn.init.normal_(parameter, std=0.2)
    return decoder.eval()


def draw(decoder: Decoder, tokens: Tensor) -> Tensor:
    with torch.no_grad():
        return decoder(tokens)


def test_tokens_become_images_between_0_and_1() -> None:
    images = draw(make(), 10 * torch.randn(2, 196, 5))
    assert images.shape == (2, 3, 224, 224)
    assert images.min() >= 0
    assert images.max() <= 1
    assert images.std() > 0.01


def test_every_image_comes_from_its_own_tokens() -> None:
    decoder, tokens = make(), torch.randn(2, 196, 5)
    both = draw(decoder, tokens)
    torch.testing.assert_close(draw(decoder, tokens[1:]), both[1:])
    assert not torch.allclose(both[0], both[1])


def test_the_decoder_is_small_at_visual_width_64() -> None:
    parameters = sum(p.numel() for p in Decoder(DecoderConfig(visual=64)).parameters())
    assert 500_000 < parameters < 2_000_000


def test_the_decoder_learns_a_few_frames() -> None:
    torch.manual_seed(0)
    colours = torch.rand(2, 3, 14, 14)
    frames = F.interpolate(colours, scale_factor=16)
    tokens = colours.flatten(2).transpose(1, 2) @ torch.randn(3, 12)
    decoder = Decoder(DecoderConfig(visual=12, blocks=1, coarse=32))
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=1e-2)
    losses = []
    for _ in range(40):
        loss = F.mse_loss(decoder(tokens), frames)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    constant = F.mse_loss(frames.mean((0, 2, 3), keepdim=True).expand_as(frames), frames).item()
    assert losses[0] > 0.8 * constant
    assert losses[-1] < constant / 5


def test_pixels_are_rounded_and_channels_last() -> None:
    images = torch.zeros(1, 3, 2, 4)
    images[0, :, 1, 2] = torch.tensor([1.0, 0.5, 0.1])
    pixels = to_uint8(images)
    assert pixels.shape == (1, 2, 4, 3)
    assert pixels[0, 1, 2].tolist() == [255, 128, 26]
    assert pixels.int().sum() == 255 + 128 + 26


def test_a_loaded_decoder_is_the_saved_one(tmp_path: Path) -> None:
    decoder, tokens = make(), torch.randn(1, 196, 5)
    decoder.save_pretrained(tmp_path)
    loaded = Decoder.from_pretrained(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["config.json", "model.safetensors"]
    assert loaded.config == SMALL
    assert not loaded.training
    torch.testing.assert_close(draw(loaded, tokens), draw(decoder, tokens), rtol=0, atol=0)


def test_a_decoder_is_not_taken_for_a_model(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="not the config of a world-model"):
        TrainedModel.from_pretrained(tmp_path)


def test_an_altered_decoder_is_refused(tmp_path: Path) -> None:
    make().save_pretrained(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(UsageError, match="truncated, altered or replaced"):
        Decoder.from_pretrained(tmp_path)


@pytest.mark.parametrize("shape", [(1, 195, 5), (1, 196, 4)])
def test_tokens_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected tokens of shape \(B, 196, 5\), got"):
        draw(make(), torch.zeros(shape))


def test_planning_does_not_import_the_decoder() -> None:
    code = (
        "import sys, scope_wm.model.checkpoint, scope_wm.model.rollout, scope_wm.planning.planner\n"
        "assert 'scope_wm.model.decoder' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
