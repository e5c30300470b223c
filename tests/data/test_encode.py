import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from scope_wm.cli import main
from scope_wm.data.encode import EncodeSettings, begin, encode, fill, finish, open_frame_encoder
from scope_wm.data.store import Store
from scope_wm.data.token_cache import TokenCache, TokensConfig
from scope_wm.files import only_writer
from scope_wm.model.student import Student, StudentConfig
from scope_wm.types import UsageError

FRAMES, FRAME_BYTES = 90, 196 * 4 * 2


@pytest.fixture(scope="module")
def student(save_student: Callable[[int], Path]) -> str:
    return str(save_student(0))


@pytest.fixture
def settings(tmp_path: Path, short_wall_path: Path, student: str) -> dict[str, Any]:
    return {"data": short_wall_path, "encoder": student, "out": tmp_path / "tokens", "workers": 1}


def tokens_of(path: Path) -> bytes:
    return (path / "tokens.npy").read_bytes()


def test_a_killed_run_goes_on_and_ends_with_the_same_bits(
    tmp_path: Path, make_store: Callable[..., Store], student: str
) -> None:
    data = make_store([200, 120]).path
    killed, whole = tmp_path / "killed", tmp_path / "whole"
    options = ["--data", str(data), "--encoder", student, "--workers", "1", "--out", str(killed)]
    process = subprocess.Popen([sys.executable, "-m", "scope_wm", "encode", *options], stderr=subprocess.PIPE)
    done, deadline = killed / "done", time.monotonic() + 120
    while not (done.is_file() and 1 in done.read_bytes()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    ticked = sum(done.read_bytes())
    assert 1 <= ticked < 5  # blocks of 64 frames
    with pytest.raises(UsageError, match="holds no finished tokens"):
        TokenCache.open(killed)
    for out in (killed, whole):
        encode(EncodeSettings(data=data, encoder=student, out=out, workers=1))
    assert tokens_of(killed) == tokens_of(whole)
    assert json.loads((killed / "metrics.jsonl").read_text())["encoded"] == 320 - 64 * ticked
    assert sorted(path.name for path in killed.iterdir()) == ["config.json", "metrics.jsonl", "tokens.npy"]


def test_the_number_of_workers_changes_nothing(tmp_path: Path, settings: dict[str, Any]) -> None:
    encode(EncodeSettings(**settings))
    encode(EncodeSettings(**settings | {"out": tmp_path / "two", "workers": 2}))
    assert tokens_of(tmp_path / "two") == tokens_of(settings["out"])


def test_the_size_is_stated_first_and_the_record_is_complete(
    settings: dict[str, Any], student: str, capsys: pytest.CaptureFixture[str]
) -> None:
    encode(EncodeSettings(**settings))
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith(f"90 frames x 1.6 kB = 141.1 kB in {settings['out']} (")
    assert first.endswith("free)")
    config = json.loads((settings["out"] / "config.json").read_text())
    assert config["tokens"].items() >= {"frames": 90, "num_tokens": 196, "dim": 4}.items()
    assert config["tokens"]["store"] == Store.open(settings["data"]).digest
    assert config["tokens"]["encoder"]["config"]["source"] == student
    assert config["versions"]["torch"] == torch.__version__
    line = json.loads((settings["out"] / "metrics.jsonl").read_text())
    assert line["seconds"] > 0
    expected = {"frames": 90, "encoded": 90, "bytes": FRAMES * FRAME_BYTES, "difference": 0.0}
    assert line.items() >= expected.items()


def test_a_finished_cache_is_left_alone(settings: dict[str, Any]) -> None:
    encode(EncodeSettings(**settings))
    before = {path: path.stat().st_mtime_ns for path in settings["out"].iterdir()}
    encode(EncodeSettings(**settings))
    assert {path: path.stat().st_mtime_ns for path in settings["out"].iterdir()} == before


def test_another_store_or_encoder_is_refused(
    settings: dict[str, Any], make_store: Callable[..., Store], save_student: Callable[[int], Path]
) -> None:
    encode(EncodeSettings(**settings))
    with pytest.raises(UsageError, match="is of another store"):
        encode(EncodeSettings(**settings | {"data": make_store([5]).path}))
    with pytest.raises(UsageError, match="is of another encoder"):
        encode(EncodeSettings(**settings | {"encoder": str(save_student(1))}))


def test_an_unfinished_cache_has_its_room_and_is_not_finished_with_another_encoder(
    settings: dict[str, Any], save_student: Callable[[int], Path]
) -> None:
    store = Store.open(settings["data"])
    settings["out"].mkdir()
    begin(settings["out"], TokensConfig.of(store, open_frame_encoder(EncodeSettings(**settings))))
    taken = (settings["out"] / "tokens.npy").stat().st_blocks * 512
    assert taken >= FRAMES * FRAME_BYTES  # so that the disk cannot be full later
    with pytest.raises(UsageError, match="is of another encoder"):
        encode(EncodeSettings(**settings | {"encoder": str(save_student(1))}))


def test_a_disk_that_is_too_small_is_refused_before_anything_is_made(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(settings["data"])
    monkeypatch.setattr("shutil.disk_usage", lambda _: usage._replace(free=FRAMES * FRAME_BYTES + 1))
    options = [word for name, value in settings.items() for word in (f"--{name}", str(value))]
    assert main(["encode", *options]) == 2
    errors = capsys.readouterr().err
    assert "the disk is too small: 90 frames x 1.6 kB = 141.1 kB" in errors
    assert "--tokens on-the-fly" in errors
    assert not settings["out"].exists()


def test_room_that_cannot_be_taken_is_an_error_and_the_same_command_goes_on(settings: dict[str, Any]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(OSError, match="File too large"):
            encode(EncodeSettings(**settings))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    with pytest.raises(UsageError, match="holds no finished tokens"):
        TokenCache.open(settings["out"])
    encode(EncodeSettings(**settings))
    assert TokenCache.open(settings["out"]).config.frames == FRAMES


def test_damaged_tokens_are_noticed_before_the_cache_counts_as_finished(settings: dict[str, Any]) -> None:
    out, store, encoder = (
        settings["out"],
        Store.open(settings["data"]),
        open_frame_encoder(EncodeSettings(**settings)),
    )
    out.mkdir()
    begin(out, TokensConfig.of(store, encoder))
    assert fill(out, store, encoder, 1) == FRAMES
    tokens = np.lib.format.open_memmap(out / "tokens.npy", mode="r+")
    tokens[FRAMES - 1, 100, 2] += 0.5
    with pytest.raises(OSError, match=r"departs by 0\.5 from encoding again"):
        finish(out, {}, store, encoder)
    assert not (out / "config.json").exists()
    tokens[FRAMES - 1, 100, 2] -= 0.5
    finish(out, {}, store, encoder)
    assert (out / "config.json").exists()


@pytest.mark.parametrize("weight", [float("nan"), 1e9])
def test_tokens_that_float16_cannot_hold_are_refused(
    tmp_path: Path, settings: dict[str, Any], weight: float
) -> None:
    broken = Student(StudentConfig(dim=4, width=8, stages=1, heads=2))
    torch.nn.init.constant_(broken.head[1].bias, weight)
    broken.save_pretrained(tmp_path / "broken")
    with pytest.raises(OSError, match="gives tokens that are not finite"):
        encode(EncodeSettings(**settings | {"encoder": str(tmp_path / "broken")}))
    assert not (settings["out"] / "config.json").exists()


def test_the_layer_of_a_hub_encoder_is_chosen(tmp_path: Path, make_store: Callable[..., Store]) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {
        "hidden_size": 8,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "image_size": 56,
        "patch_size": 14,
    }
    transformers.Dinov2Model(transformers.Dinov2Config(**sizes)).save_pretrained(tmp_path / "eye")
    data = make_store([5]).path
    caches = []
    for layer in (1, None):
        out = tmp_path / f"layer-{layer}"
        encode(EncodeSettings(data=data, encoder=str(tmp_path / "eye"), layer=layer, out=out, workers=1))
        caches.append(TokenCache.open(out))
    assert [cache.encoder.config.layer for cache in caches] == [1, None]
    one, last = (cache.read(np.arange(5)) for cache in caches)
    assert one.shape == last.shape == (5, 196, 8)
    assert np.abs(one - last).max() > 0.01


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"workers": 0}, "expected --workers of at least 1"),
        ({"layer": 9}, "--layer is for an encoder of the hub"),
    ],
)
def test_senseless_settings_are_refused(
    settings: dict[str, Any], wrong: dict[str, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        encode(EncodeSettings(**settings | wrong))
    assert not settings["out"].exists()


def test_a_store_without_frames_is_refused(settings: dict[str, Any]) -> None:
    empty = settings["out"].with_name("empty")
    empty.mkdir()
    shutil.copy(settings["data"] / "config.json", empty)
    with pytest.raises(UsageError, match="no episodes to encode"):
        encode(EncodeSettings(**settings | {"data": empty}))


def test_what_is_not_a_cache_is_not_touched(settings: dict[str, Any]) -> None:
    settings["out"].write_text("precious")
    with pytest.raises(UsageError, match="holds something else"):
        encode(EncodeSettings(**settings))
    assert settings["out"].read_text() == "precious"
    settings["out"].unlink()
    settings["out"].mkdir()
    (settings["out"] / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="holds something else"):
        encode(EncodeSettings(**settings))
    assert [path.name for path in settings["out"].iterdir()] == ["thesis.txt"]


def test_two_jobs_do_not_write_into_one_cache(settings: dict[str, Any]) -> None:
    settings["out"].mkdir()
    with only_writer(settings["out"]), pytest.raises(UsageError, match="another process is writing"):
        encode(EncodeSettings(**settings))
    assert list(settings["out"].iterdir()) == []
