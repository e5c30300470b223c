import hashlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from scope_wm.model.encoder import Encoder, EncoderConfig, HubEncoder, content_hash
from scope_wm.model.reduced import fit_pca
from scope_wm.tasks import TASKS
from scope_wm.types import UsageError

transformers = pytest.importorskip("transformers")

SMALL = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "image_size": 56}
CONFIGS = {
    "dinov2": lambda: transformers.Dinov2Config(**SMALL, patch_size=14, hidden_dropout_prob=0.5),
    "registers": lambda: transformers.Dinov2WithRegistersConfig(
        **SMALL, patch_size=14, num_register_tokens=4
    ),
    "dinov3": lambda: transformers.DINOv3ViTConfig(
        **SMALL, patch_size=16, num_register_tokens=4, intermediate_size=32
    ),
    "vit": lambda: transformers.ViTConfig(**SMALL, patch_size=8, intermediate_size=32),
}
PREFIX = {"dinov2": 1, "registers": 5, "dinov3": 5, "vit": 1}  # class token, and registers if any
REAL = os.environ.get("SCOPE_WM_DINOV2")
needs_weights = pytest.mark.skipif(
    REAL is None, reason="SCOPE_WM_DINOV2 names no directory with DINOv2 weights"
)


@pytest.fixture(scope="module", params=CONFIGS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def save(kind: str, folder: Path) -> Any:
    """Save a small random model as transformers does, and return it."""
    torch.manual_seed(0)
    model = transformers.AutoModel.from_config(CONFIGS[kind]()).eval()
    for parameter in model.parameters():  # as they come, many are zero or tiny
        nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def dinov2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dinov2")
    save("dinov2", folder)
    return folder


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Make every connection fail, and return the list of attempts."""
    attempts: list[object] = []

    def refuse(*arguments: object, **_: object) -> None:
        attempts.append(arguments)
        raise OSError("no network in this test")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    return attempts


def images(count: int = 2) -> Tensor:
    return torch.randint(0, 256, (count, 224, 224, 3), generator=torch.Generator().manual_seed(1)).byte()


def pixels(pictures: Tensor, size: int) -> Tensor:
    """Do it by hand: scale to [0, 1], mean 0.5, std 0.5, then resize."""
    scaled = (pictures.permute(0, 3, 1, 2).double() / 255 - 0.5) / 0.5
    return F.interpolate(scaled, (size, size), mode="bilinear", antialias=True).float()


def test_tokens_are_the_normed_patch_tokens_of_transformers(kind: str, tmp_path: Path) -> None:
    model = save(kind, tmp_path)
    encoder = HubEncoder(EncoderConfig(source=str(tmp_path)))
    assert isinstance(encoder, Encoder)
    assert (encoder.name, encoder.num_tokens, encoder.dim) == (str(tmp_path), 196, 16)
    options = {"interpolate_pos_encoding": True} if kind == "vit" else {}
    x = pixels(images(), 14 * model.config.patch_size)
    whole = model(x, **options).last_hidden_state.detach()
    assert whole.shape[1] == 196 + PREFIX[kind]
    torch.testing.assert_close(encoder(images()), whole[:, PREFIX[kind] :], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("grid", [3, 14])
@pytest.mark.parametrize("layer", [1, 2, 3])
def test_a_layer_is_its_hidden_state_through_the_final_layernorm(layer: int, grid: int, dinov2: Path) -> None:
    model = transformers.AutoModel.from_pretrained(dinov2).eval()
    encoder = HubEncoder(EncoderConfig(source=str(dinov2), layer=layer, grid=grid))
    hidden = model(pixels(images(), 14 * grid), output_hidden_states=True).hidden_states[layer]
    expected = model.layernorm(hidden)[:, 1:].detach()
    assert encoder.num_tokens == grid * grid
    torch.testing.assert_close(encoder(images()), expected, atol=1e-4, rtol=1e-4)


def test_layers_after_the_chosen_one_are_not_there(dinov2: Path) -> None:
    def size(layer: int) -> int:
        encoder = HubEncoder(EncoderConfig(source=str(dinov2), layer=layer))
        return sum(parameter.numel() for parameter in encoder.parameters())

    # Of width 16: 4 projections, MLP of 4 x 16, 2 norms, 2 layer scales.
    assert size(3) - size(2) == size(2) - size(1) == 4 * (256 + 16) + (2 * 1024 + 64 + 16) + 4 * 16 + 2 * 16


def test_mean_and_std_are_those_of_the_config(dinov2: Path) -> None:
    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    model = transformers.AutoModel.from_pretrained(dinov2).eval()
    x = (images().permute(0, 3, 1, 2) / 255 - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[
        :, None, None
    ]
    x = F.interpolate(x, (196, 196), mode="bilinear", antialias=True)
    encoder = HubEncoder(EncoderConfig(source=str(dinov2), mean=mean, std=std))
    torch.testing.assert_close(encoder(images()), model(x).last_hidden_state[:, 1:], atol=1e-4, rtol=1e-4)


def test_the_default_source_is_the_hub_unless_a_directory_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SCOPE_WM_DINOV2", raising=False)
    assert EncoderConfig().source == "facebook/dinov2-small"
    monkeypatch.setenv("SCOPE_WM_DINOV2", "weights/here")
    assert EncoderConfig().source == "weights/here"


def test_a_directory_never_touches_the_network(dinov2: Path, no_network: list[object]) -> None:
    HubEncoder(EncoderConfig(source=str(dinov2)))
    assert no_network == []


def test_a_hub_id_in_the_cache_never_touches_the_network(
    tmp_path: Path, no_network: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = 40 * "0"
    repository = tmp_path / "models--somebody--tiny"
    expected = save("dinov2", repository / "snapshots" / commit)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    encoder = HubEncoder(EncoderConfig(source="somebody/tiny"))
    assert encoder.digest() == content_hash(expected)
    assert no_network == []


def test_a_model_that_is_nowhere_is_an_error_that_says_how_to_get_it(
    no_network: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(UsageError, match="hf download nobody/no-such-model") as caught:
        HubEncoder(EncoderConfig(source="nobody/no-such-model"))
    assert "SCOPE_WM_DINOV2" in str(caught.value)


@pytest.mark.parametrize("source", ["/no/such/directory", "./here", "~/there", "dinov2", "a/b/c"])
def test_what_is_neither_a_directory_nor_a_hub_id_is_refused(source: str, no_network: list[object]) -> None:
    with pytest.raises(UsageError, match=f"expected an encoder's directory or hub id.*got {source}"):
        HubEncoder(EncoderConfig(source=source))
    assert no_network == []


def test_a_missing_package_is_an_error_that_says_how_to_install_it(
    dinov2: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=r"pip install 'scope-wm\[hub\]'"):
        HubEncoder(EncoderConfig(source=str(dinov2)))


@pytest.mark.parametrize("layer", [-1, 0, 4])
def test_a_layer_that_is_not_there_is_refused(layer: int, dinov2: Path) -> None:
    with pytest.raises(ValueError, match=f"a layer between 1 and 3 of .* got {layer}"):
        HubEncoder(EncoderConfig(source=str(dinov2), layer=layer))


def test_a_model_without_patches_is_refused(tmp_path: Path) -> None:
    transformers.BertConfig(hidden_size=16, num_attention_heads=2).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"expected a patch transformer, got .* of type 'bert'"):
        HubEncoder(EncoderConfig(source=str(tmp_path)))


def test_a_directory_without_a_complete_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"found no config\.json"):
        HubEncoder(EncoderConfig(source=str(tmp_path)))
    save("dinov2", tmp_path)
    file = tmp_path / "model.safetensors"
    whole = file.read_bytes()
    weights = safetensors.torch.load(whole)
    del weights["layernorm.weight"]
    file.write_bytes(safetensors.torch.save(weights, metadata={"format": "pt"}))
    with pytest.raises(UsageError, match=r"lacks 1 weights of its layers, such as layernorm\.weight"):
        HubEncoder(EncoderConfig(source=str(tmp_path)))
    file.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(UsageError, match="does not hold a complete model with safetensors weights"):
        HubEncoder(EncoderConfig(source=str(tmp_path)))


@pytest.mark.parametrize("wrong", [images().float(), images()[:, :100], images().permute(0, 3, 1, 2)])
def test_other_images_than_uint8_of_224_are_refused(wrong: Tensor, dinov2: Path) -> None:
    with pytest.raises(ValueError, match=r"expected uint8 images of shape \(B, 224, 224, 3\), got"):
        HubEncoder(EncoderConfig(source=str(dinov2)))(wrong)


def test_nothing_unfreezes_an_encoder(dinov2: Path) -> None:
    encoder = HubEncoder(EncoderConfig(source=str(dinov2)))
    before = encoder(images())
    encoder.train()  # this model has dropout
    assert not any(module.training for module in encoder.backbone.modules())
    assert not any(parameter.requires_grad for parameter in encoder.parameters())
    assert not encoder(images()).requires_grad
    torch.testing.assert_close(encoder(images()), before, atol=0, rtol=0)


def test_a_batch_equals_single_images(kind: str, tmp_path: Path) -> None:
    save(kind, tmp_path)
    encoder = HubEncoder(EncoderConfig(source=str(tmp_path)))
    single = torch.cat([encoder(image[None]) for image in images(3)])
    torch.testing.assert_close(encoder(images(3)), single, atol=1e-4, rtol=1e-4)


def test_bfloat16_stays_close_to_float32(dinov2: Path) -> None:
    encoder = HubEncoder(EncoderConfig(source=str(dinov2)))
    exact = encoder(images())
    with torch.autocast("cpu", torch.bfloat16):
        rough = encoder(images()).float()
    assert (rough - exact).norm() < 0.03 * exact.norm()


def test_it_runs_where_its_weights_are(dinov2: Path) -> None:
    encoder = HubEncoder(EncoderConfig(source=str(dinov2))).to("meta")
    assert encoder(images().to("meta")).shape == (2, 196, 16)


def test_the_hash_is_the_sha256_of_the_hashes_of_the_weights() -> None:
    layer = nn.Linear(1, 2)
    layer.weight.data, layer.bias.data = torch.tensor([[1.0], [2.0]]), torch.tensor([0.5, -1.0])
    parts = [
        hashlib.sha256(b"(2, 1)" + np.array([1.0, 2.0], "<f4").tobytes()).digest(),
        hashlib.sha256(b"(2,)" + np.array([0.5, -1.0], "<f4").tobytes()).digest(),
    ]
    assert content_hash(layer) == hashlib.sha256(b"".join(sorted(parts))).hexdigest()


def test_the_hash_tells_weights_apart_and_knows_them_again(dinov2: Path, tmp_path: Path) -> None:
    digest = HubEncoder(EncoderConfig(source=str(dinov2))).digest()
    model = transformers.AutoModel.from_pretrained(dinov2)
    model.save_pretrained(tmp_path / "again")
    assert HubEncoder(EncoderConfig(source=str(tmp_path / "again"))).digest() == digest
    assert HubEncoder(EncoderConfig(source=str(dinov2), layer=2)).digest() != digest
    model.layernorm.bias.data[3] += 1e-6
    model.save_pretrained(tmp_path / "changed")
    assert HubEncoder(EncoderConfig(source=str(tmp_path / "changed"))).digest() != digest


def push_t_frames(count: int) -> Tensor:
    task = TASKS["push_t"]()
    frames = []
    for seed in range(count):
        task.set_state(task.sample_problem(seed).start)
        frames.append(torch.from_numpy(task.render()))
    return torch.stack(frames)


@needs_weights
def test_64_channels_keep_97_percent_of_real_features_on_push_t() -> None:
    tokens = HubEncoder(EncoderConfig(source=str(REAL), layer=9))(push_t_frames(12))
    assert float(fit_pca([tokens], 64).explained) > 0.97


@needs_weights
def test_real_features_tell_the_block_from_the_background() -> None:
    frames = push_t_frames(12)
    tokens = HubEncoder(EncoderConfig(source=str(REAL), layer=9))(frames)
    change = (tokens - tokens.mean(0)).norm(dim=-1)  # [B N] from the mean of each patch
    # A patch of 16 x 16 pixels with the grey of the block in it, and one that is all white.
    patches = frames.unfold(1, 16, 16).unfold(2, 16, 16).flatten(1, 2).flatten(3).transpose(2, 3)
    grey = (patches.int() - torch.tensor([143, 163, 184])).abs().amax(-1) < 12
    block, empty = grey.float().mean(-1) > 0.5, (patches == 255).all(-1).all(-1)
    assert block.sum() > 30
    assert empty.sum() > 1000
    assert change[block].mean() > 3 * change[empty].mean()
