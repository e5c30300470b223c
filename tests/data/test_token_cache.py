import json
import pickle
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from jaxtyping import Float32
from torch import Tensor, nn

from scope_wm.data.encode import EncodeSettings, encode
from scope_wm.data.split import open_splits
from scope_wm.data.statistics import statistics
from scope_wm.data.store import Store
from scope_wm.data.token_cache import (
    FrameEncoder,
    LiveTokens,
    TokenCache,
    Tokens,
    TokensConfig,
    open_tokens,
)
from scope_wm.data.windows import Windows
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.student import Student, StudentConfig, StudentEncoder
from scope_wm.types import UsageError

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def student(save_student: Callable[[int], Path]) -> EncoderConfig:
    return EncoderConfig(source=str(save_student(0)))


@pytest.fixture(scope="module")
def cache_path(
    tmp_path_factory: pytest.TempPathFactory, short_wall_path: Path, student: EncoderConfig
) -> Path:
    path = tmp_path_factory.mktemp("caches") / "wall"
    encode(EncodeSettings(data=short_wall_path, encoder=student.source, out=path, workers=1))
    return path


def test_a_cache_holds_what_the_encoder_gives(
    cache_path: Path, short_wall_path: Path, student: EncoderConfig
) -> None:
    cache, store = TokenCache.open(cache_path), Store.open(short_wall_path)
    numbers = np.array([89, 3, 3, 64])
    expected = StudentEncoder.from_pretrained(Path(student.source))(torch.from_numpy(store.frames(numbers)))
    tokens = cache.read(numbers)
    assert isinstance(cache, Tokens)
    assert (tokens.dtype, tokens.shape) == (np.float16, (4, cache.num_tokens, cache.dim))
    assert np.abs(tokens - expected.numpy()).max() <= 1e-3 * float(expected.abs().max())
    assert np.abs(tokens[0] - tokens[1]).max() > 0.01  # the frames differ, and so do their tokens


@pytest.mark.parametrize("order", [[5], [0, 89, 1], list(range(20, 3, -1))])
def test_tokens_made_when_read_are_those_of_the_cache_bit_by_bit(
    cache_path: Path, short_wall_path: Path, student: EncoderConfig, order: list[int]
) -> None:
    cached = TokenCache.open(cache_path)
    live = LiveTokens(Store.open(short_wall_path), FrameEncoder(student, CPU))
    assert isinstance(live, Tokens)
    assert np.array_equal(cached.read(np.array(order)), live.read(np.array(order)))
    for name in ("encoder", "num_tokens", "dim", "digest"):
        assert getattr(cached, name) == getattr(live, name)


def test_tokens_do_not_depend_on_how_many_frames_are_read_at_once(
    tmp_path: Path, short_wall_path: Path
) -> None:
    torch.manual_seed(0)
    Student(StudentConfig()).save_pretrained(tmp_path)  # a tiny one gives the same bits in any batch
    tokens = LiveTokens(Store.open(short_wall_path), FrameEncoder(EncoderConfig(source=str(tmp_path)), CPU))
    together = tokens.read(np.arange(11))
    for first, last in ((0, 1), (6, 9)):
        assert np.array_equal(tokens.read(np.arange(first, last)), together[first:last])


def loss_curve(data: Path, tokens: Tokens) -> list[float]:
    """Train a linear map from a frame's tokens to the next frame's."""
    training = open_splits(data).training
    windows = Windows(training, statistics(training), history=1, frameskip=5, read=tokens.read)
    torch.manual_seed(0)
    model = nn.Linear(tokens.dim, tokens.dim)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.1)
    losses = []
    for step in range(6):
        visual: Float32[Tensor, "B T N V"] = windows.batch(range(step, step + 13)).visual.float()
        loss = (model(visual[:, 0]) - visual[:, 1]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    return losses


def test_training_has_the_same_loss_curve_with_either(
    cache_path: Path, short_wall_path: Path, student: EncoderConfig
) -> None:
    cached = open_tokens(str(cache_path), short_wall_path, student, "cpu")
    live = open_tokens("on-the-fly", short_wall_path, student, "cpu")
    assert cached.digest == live.digest
    losses = loss_curve(short_wall_path, cached.training)
    assert losses == loss_curve(short_wall_path, live.training)
    assert losses[-1] < losses[0]


def test_two_stores_have_a_cache_each(
    tmp_path: Path, short_wall_path: Path, make_store: Callable[..., Store], student: EncoderConfig
) -> None:
    data = tmp_path / "data"
    shutil.copytree(make_store([5, 4]).path, data / "train")
    shutil.copytree(short_wall_path, data / "val")
    encode(EncodeSettings(data=data, encoder=student.source, out=tmp_path / "tokens", workers=1))
    cached = open_tokens(str(tmp_path / "tokens"), data, student, "cpu")
    live = open_tokens("on-the-fly", data, student, "cpu")
    for numbers, part in ((np.arange(9), "training"), (np.arange(85, 90), "validation")):
        read, made = (getattr(tokens, part).read(numbers) for tokens in (cached, live))
        assert np.array_equal(read, made)
    assert cached.digest == live.digest
    assert cached.digest == f"{cached.training.digest}-{cached.validation.digest}"
    assert cached.training.digest != cached.validation.digest


def test_one_store_has_one_cache_for_both_splits(
    cache_path: Path, short_wall_path: Path, student: EncoderConfig
) -> None:
    tokens = open_tokens(str(cache_path), short_wall_path, student, "cpu")
    assert tokens.training is tokens.validation
    assert tokens.digest == tokens.training.digest


def test_a_cache_crosses_to_another_process_by_its_path(cache_path: Path) -> None:
    cache = TokenCache.open(cache_path)
    sent = pickle.dumps(cache)
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent).read(np.arange(3)), cache.read(np.arange(3)))


def test_tokens_of_another_store_are_refused(
    cache_path: Path, make_store: Callable[..., Store], student: EncoderConfig
) -> None:
    with pytest.raises(UsageError, match="tokens of another store than"):
        open_tokens(str(cache_path), make_store([5]).path, student, "cpu")


def test_tokens_of_another_encoder_than_the_models_are_refused(
    cache_path: Path, short_wall_path: Path, student: EncoderConfig, save_student: Callable[[int], Path]
) -> None:
    tokens = open_tokens(str(cache_path), short_wall_path, student, "cpu")
    same, other = (FrameEncoder(EncoderConfig(source=str(save_student(seed))), CPU) for seed in (0, 1))
    tokens.check_encoder(same.reference)  # in another directory
    with pytest.raises(UsageError, match="of another encoder than the model"):
        tokens.check_encoder(other.reference)


@pytest.mark.parametrize("change", [{"layer": 3}, {"grid": 7}, {"mean": (0.0, 0.0, 0.0)}])
def test_the_digest_knows_how_images_enter_the_encoder(cache_path: Path, change: dict[str, object]) -> None:
    config = TokenCache.open(cache_path).config
    assert len(config.digest) == 16

    def with_encoder(**values: object) -> TokensConfig:
        encoder = replace(config.encoder, config=replace(config.encoder.config, **values))  # type: ignore[arg-type]
        return replace(config, encoder=encoder)

    assert with_encoder(source="elsewhere").digest == config.digest
    assert with_encoder(**change).digest != config.digest
    assert replace(config, store="0123456789abcdef").digest != config.digest


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "store"}, "is not the config of tokens"),
        ({"format": 2}, "has format 2, this version reads format 1"),
        ({"tokens": {}}, "missing"),
    ],
)
def test_a_foreign_config_is_refused(
    tmp_path: Path, cache_path: Path, wrong: dict[str, object], message: str
) -> None:
    header = json.loads((cache_path / "config.json").read_text()) | wrong
    (tmp_path / "config.json").write_text(json.dumps(header))
    with pytest.raises(UsageError, match=message):
        TokenCache.open(tmp_path)


def test_an_unfinished_or_truncated_cache_is_refused(tmp_path: Path, cache_path: Path) -> None:
    with pytest.raises(UsageError, match="holds no finished tokens: scope-wm encode"):
        TokenCache.open(tmp_path)
    shutil.copy(cache_path / "config.json", tmp_path)
    with pytest.raises(UsageError, match=r"tokens.npy is missing or truncated"):
        TokenCache.open(tmp_path)
    content = (cache_path / "tokens.npy").read_bytes()
    (tmp_path / "tokens.npy").write_bytes(content[:-5000])
    with pytest.raises(UsageError, match=r"tokens.npy is missing or truncated"):
        TokenCache.open(tmp_path)
    np.save(tmp_path / "tokens.npy", np.zeros((90, 196, 4), np.float32))
    with pytest.raises(UsageError, match=r"expected float16 \(90, 196, 4\), got float32"):
        TokenCache.open(tmp_path)
