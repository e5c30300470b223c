import errno
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from scope_wm.data.store import Store, open_shard
from scope_wm.files import sweep, write_file, write_json
from scope_wm.types import UsageError

MakeStore = Callable[..., Store]


def test_an_episode_comes_back_as_it_was_written(make_store: MakeStore) -> None:
    episode = make_store([3, 5]).episode(1)
    assert len(episode) == 5
    assert episode.frames[:, 0, 0, 0].tolist() == [0, 1, 2, 3, 4]
    assert episode.proprio.tolist() == [[1, 0], [1, 1], [1, 2], [1, 3], [1, 4]]
    assert episode.actions.tolist() == [[100, 0], [101, -1], [102, -2], [103, -3]]
    dtypes = [array.dtype for array in (episode.frames, episode.proprio, episode.states, episode.actions)]
    assert dtypes == [np.uint8, np.float32, np.float64, np.float64]


def test_frames_are_numbered_through_the_store(make_store: MakeStore) -> None:
    store = make_store([3, 5, 2, 4, 3, 6, 2])  # two shards
    assert len(store.index) == 2
    assert store.num_frames == 25
    assert store.first.tolist() == [0, 3, 8, 10, 14, 17, 23]
    numbers = np.array([24, 0, 8, 22, 3, 8])
    assert store.frames(numbers)[:, 100, 100, 2].tolist() == [1, 0, 0, 5, 0, 0]
    assert store.proprio[numbers].tolist() == [[6, 1], [0, 0], [2, 0], [5, 5], [1, 0], [2, 0]]
    assert store.states.shape == (25, 2)
    assert store.actions.shape == (25 - 7, 2)
    assert store.actions[10 - 3].tolist() == [300, 0]  # what follows frame 10, the first of the episode at 3


def test_frame_numbers_beyond_the_store_are_refused(make_store: MakeStore) -> None:
    store = make_store([3, 5])
    for wrong in (-1, 8):
        with pytest.raises(ValueError, match=r"expected frame numbers in 0\.\.7"):
            store.frames(np.array([0, wrong]))


def test_frames_are_compressed_without_loss(wall_path: Path) -> None:
    store = Store.open(wall_path)
    with h5py.File(wall_path / "shard-00000.h5") as file:
        frames = file["episode-000000/frames"]
        assert frames.chunks == (1, 224, 224, 3)
        assert frames.id.get_storage_size() < frames.nbytes / 10
    assert np.array_equal(store.frames(np.arange(50)), store.episode(0).frames)


def test_a_lost_index_is_rebuilt_from_the_shards(make_store: MakeStore) -> None:
    store = make_store([3, 5, 2, 4, 3, 6])
    index = store.path / "index.json"
    before = index.read_text()
    index.unlink()
    assert Store.open(store.path).lengths.tolist() == [3, 5, 2, 4, 3, 6]
    assert index.read_text() == before


@pytest.mark.parametrize("text", ["{", "[]", '{"shard-00000.h5": {"size": 1}}'])
def test_a_damaged_index_is_rebuilt_from_the_shards(make_store: MakeStore, text: str) -> None:
    store = make_store([3, 5])
    index = store.path / "index.json"
    before = index.read_text()
    index.write_text(text)
    assert Store.open(store.path).lengths.tolist() == [3, 5]
    assert index.read_text() == before


def test_an_index_of_other_shards_is_not_believed(make_store: MakeStore) -> None:
    store = make_store([3, 5, 2, 4, 3, 6])
    other = make_store([4, 4], name="other")
    (store.path / "shard-00001.h5").unlink()
    shutil.copy(other.path / "shard-00000.h5", store.path)
    opened = Store.open(store.path)
    assert opened.lengths.tolist() == [4, 4]
    assert opened.digest != store.digest
    assert list(json.loads((store.path / "index.json").read_text())) == ["shard-00000.h5"]


def test_a_store_with_a_gap_keeps_the_episode_numbers(make_store: MakeStore) -> None:
    store = make_store([3] * 12)
    (store.path / "shard-00001.h5").unlink()
    opened = Store.open(store.path)
    assert opened.numbers.tolist() == [0, 1, 2, 3, 4, 10, 11]
    assert opened.episode(5).states[0].tolist() == [10, 0]


def test_what_is_not_a_store_is_refused(make_store: MakeStore, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no store at .*nowhere"):
        Store.open(tmp_path / "nowhere")
    with pytest.raises(UsageError, match=r"it has no config\.json"):
        Store.open(tmp_path)
    config = make_store([3]).path / "config.json"
    values = json.loads(config.read_text())
    write_json(config, values | {"format": 99})
    with pytest.raises(UsageError, match="format 99, this version reads format 1"):
        Store.open(config.parent)
    write_json(config, values | {"kind": "model"})
    with pytest.raises(UsageError, match="that of a model"):
        Store.open(config.parent)
    write_json(config, values | {"sed": 1})
    with pytest.raises(UsageError, match=r"lacks or should not have \['sed'\]"):
        Store.open(config.parent)
    config.write_text("{")
    with pytest.raises(UsageError, match=r"config\.json is damaged"):
        Store.open(config.parent)


def test_a_truncated_shard_is_named_with_what_to_do(make_store: MakeStore) -> None:
    shard = make_store([3, 5]).path / "shard-00000.h5"
    shard.write_bytes(shard.read_bytes()[:-100])
    with pytest.raises(OSError, match=r"shard-00000\.h5 cannot be read .*truncated.*delete it"):
        Store.open(shard.parent)


def test_a_shard_is_not_blamed_for_the_systems_trouble(
    make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = make_store([3]).path / "shard-00000.h5"

    def too_many(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(h5py, "File", too_many)
    with pytest.raises(OSError, match="Too many open files") as raised:
        open_shard(shard)
    assert "delete" not in str(raised.value)


def test_a_failed_write_leaves_the_old_file_and_no_other(tmp_path: Path) -> None:
    write_file(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        write_file(tmp_path / "a", "no bytes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a", float("nan"))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_sweep_removes_only_half_written_files(tmp_path: Path) -> None:
    for name in (".shard-00000.h5.123.partial", "shard-00000.h5", ".hidden"):
        (tmp_path / name).touch()
    sweep(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".hidden", "shard-00000.h5"]


def test_stores_are_read_without_loading_torch() -> None:
    modules = ", ".join(f"scope_wm.data.{name}" for name in ("collect", "info", "check", "play", "problems"))
    script = f"import sys, {modules}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], check=True)
