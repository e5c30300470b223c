import errno
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from scope_wm.cli import main
from scope_wm.data.check import find_faults
from scope_wm.data.store import read_config

SHARD = "shard-00001.h5"


def edit(path: Path, change: Callable[[h5py.File], None]) -> None:
    with h5py.File(path / SHARD, "r+") as file:
        change(file)


def replace(file: h5py.File, name: str, change: Callable[[np.ndarray], np.ndarray]) -> None:
    values = change(file[name][()])
    del file[name]
    file[name] = values


def put(file: h5py.File, name: str, value: float) -> None:
    file[name][3, 1] = value


def truncate(path: Path) -> None:
    (path / SHARD).write_bytes((path / SHARD).read_bytes()[:-1])


def flip_a_byte_of_a_frame(path: Path) -> None:
    with h5py.File(path / SHARD) as file:
        chunk = file["episode-000007/frames"].id.get_chunk_info(4)
    content = bytearray((path / SHARD).read_bytes())
    content[chunk.byte_offset + chunk.size // 2] ^= 0xFF
    (path / SHARD).write_bytes(content)


def flip_a_byte_of_a_group(path: Path) -> None:
    with h5py.File(path / SHARD) as file:
        header = h5py.h5o.get_info(file["episode-000007"].id).addr
    content = bytearray((path / SHARD).read_bytes())
    content[header + 8] ^= 0xFF
    (path / SHARD).write_bytes(content)


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "truncated": (truncate, r"shard-00001\.h5 cannot be read \(.*truncated file"),
    "removed": (
        lambda path: (path / SHARD).unlink(),
        r"shard-00001\.h5: missing, with episode-000005 to episode-000009",
    ),
    "flipped byte": (flip_a_byte_of_a_frame, r"episode-000007: frames: row 4 cannot be read"),
    "flipped byte of metadata": (flip_a_byte_of_a_group, r"episode-000007: cannot be read \(.*checksum"),
    "NaN state": (
        lambda path: edit(path, lambda file: put(file, "episode-000006/states", np.nan)),
        r"episode-000006: states: row 3 is not finite",
    ),
    "infinite action": (
        lambda path: edit(path, lambda file: put(file, "episode-000006/actions", np.inf)),
        r"episode-000006: actions: row 3 is not finite",
    ),
    "dropped row": (
        lambda path: edit(path, lambda file: replace(file, "episode-000008/actions", lambda a: a[:-1])),
        r"episode-000008: actions: expected float64 \(49, 2\), got float64 \(48, 2\)",
    ),
    "small images": (
        lambda path: edit(
            path, lambda file: replace(file, "episode-000008/frames", lambda a: a[:, ::2, ::2])
        ),
        r"frames: expected uint8 \(50, 224, 224, 3\), got uint8 \(50, 112, 112, 3\)",
    ),
    "wrong dtype": (
        lambda path: edit(path, lambda file: replace(file, "episode-000008/proprio", np.float64)),
        r"proprio: expected float32 \(50, 2\), got float64 \(50, 2\)",
    ),
    "wrong length": (
        lambda path: edit(path, lambda file: file["episode-000008"].attrs.modify("length", 51)),
        r"episode-000008: expected a length of 2 to 50, got 51",
    ),
    "lost array": (
        lambda path: edit(path, lambda file: file.pop("episode-000008/states")),
        r"episode-000008: states: missing",
    ),
    "stray shard": (
        lambda path: shutil.copy(path / SHARD, path / "shard-00003.h5"),
        r"shard-00003\.h5: not a shard of this store",
    ),
    "lost episode": (
        lambda path: edit(path, lambda file: file.pop("episode-000005")),
        r"episode-000005: missing",
    ),
}


@pytest.fixture
def copy(wall_path: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(wall_path, tmp_path / "copy"))


@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_found_and_named(copy: Path, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    damage, message = DAMAGE[kind]
    damage(copy)
    assert main(["data", "check", str(copy)]) == 1
    shown = capsys.readouterr().out
    assert re.search(message, shown), shown


def test_a_sound_store_passes_and_can_be_replayed(
    wall_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["data", "check", str(wall_path), "--replay", "3"]) == 0
    assert "12 episodes are sound, 3 of them collected again, bit-equal" in capsys.readouterr().out


def test_a_replay_finds_data_that_is_not_reproduced(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(copy, lambda file: put(file, "episode-000007/actions", 0.125))
    assert main(["data", "check", str(copy)]) == 0
    assert main(["data", "check", str(copy), "--replay", "12"]) == 1
    shown = capsys.readouterr().out.splitlines()
    assert "episode-000007: actions differ from what collecting it again gives" in shown
    assert shown[-1].endswith("delete nothing")


def test_the_systems_trouble_is_no_fault_of_a_shard(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(h5py, "File", too_many)
    with pytest.raises(OSError, match="Too many open files"):
        list(find_faults(copy, read_config(copy)))


def test_an_interrupted_store_lacks_what_is_missing(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (copy / "shard-00000.h5").unlink()
    (copy / "shard-00002.h5").unlink()
    assert main(["data", "check", str(copy)]) == 1
    assert "2 faults" in capsys.readouterr().out
