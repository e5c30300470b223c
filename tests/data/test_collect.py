import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import psutil
import pytest

from scope_wm.data.collect import CollectSettings, collect, collect_episode
from scope_wm.data.progress import progress
from scope_wm.data.store import Store
from scope_wm.files import only_writer, write_json
from scope_wm.tasks import wall
from scope_wm.tasks.wall import Wall
from scope_wm.types import MadeOtherwise, UsageError

SameContent = Callable[[Path, Path], None]
EPISODES = 150  # long enough to be killed in the middle, also by a test that has to wait for a core


def command(out: Path, episodes: int, workers: int) -> list[str]:
    settings = ["--task", "wall", "--episodes", str(episodes), "--workers", str(workers), "--out", str(out)]
    return [sys.executable, "-m", "scope_wm", "collect", *settings]


def litter(path: Path) -> list[str]:
    return [entry.name for entry in path.iterdir() if entry.name.startswith(".")]


def start_two_workers(out: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """Start collecting and come back when two shards are finished, with all processes that do it."""
    pipe = subprocess.PIPE
    parent = subprocess.Popen(
        command(out, EPISODES, 2),
        stdout=pipe,
        stderr=pipe,
        text=True,
        start_new_session=True,
        # A shell lets what it starts in the background ignore Ctrl-C: tests may have been started so.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    deadline = time.monotonic() + 60
    while len(list(out.glob("shard-*.h5"))) < 2:
        assert parent.poll() is None, parent.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.005)
    children = psutil.Process(parent.pid).children(recursive=True)
    assert len(children) >= 2
    return parent, children


def test_a_killed_job_goes_on_to_the_same_store(tmp_path: Path, assert_same_content: SameContent) -> None:
    out = tmp_path / "wall"
    parent, children = start_two_workers(out)
    parent.kill()
    parent.communicate()
    assert psutil.wait_procs(children, timeout=20)[1] == []
    finished = len(Store.open(out))
    assert 10 <= finished < EPISODES
    assert finished % 5 == 0
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("shard-*.h5")}
    uninterrupted = tmp_path / "uninterrupted"
    for path in (out, uninterrupted):
        subprocess.run(command(path, EPISODES, 1), check=True, capture_output=True)
    assert_same_content(out, uninterrupted)
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept
    assert litter(out) == []


def test_ctrl_c_keeps_what_is_finished_and_says_how_to_go_on(tmp_path: Path) -> None:
    out = tmp_path / "wall"
    parent, children = start_two_workers(out)
    os.killpg(parent.pid, signal.SIGINT)  # a terminal sends it to every process of the job
    _, errors = parent.communicate(timeout=30)
    assert parent.returncode == 130
    assert "go on where they stopped" in errors
    assert "Traceback" not in errors
    assert psutil.wait_procs(children, timeout=20)[1] == []
    assert 10 <= len(Store.open(out)) < EPISODES
    assert litter(out) == []


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file_size_limit_is_a_clear_error_and_leaves_a_readable_store(
    tmp_path: Path, wall_path: Path, assert_same_content: SameContent, workers: int
) -> None:
    out = tmp_path / "wall"
    collect(CollectSettings(task="wall", episodes=5, out=out, workers=1))
    limit = 100_000  # less than a shard
    stopped = subprocess.run(
        command(out, 12, workers),
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
    )
    assert stopped.returncode == 1
    assert "File too large" in stopped.stderr
    assert "keeps the 5 episodes that are finished; the same command goes on" in stopped.stderr
    assert "Traceback" not in stopped.stderr
    assert litter(out) == []
    assert Store.open(out).numbers.tolist() == [0, 1, 2, 3, 4]
    collect(CollectSettings(task="wall", episodes=12, out=out, workers=1))
    assert_same_content(out, wall_path)


def test_the_number_of_workers_changes_nothing(
    tmp_path: Path, wall_path: Path, assert_same_content: SameContent
) -> None:
    collect(CollectSettings(task="wall", episodes=12, out=tmp_path / "wall", workers=2))
    assert_same_content(tmp_path / "wall", wall_path)


def test_a_finished_store_grows(tmp_path: Path, wall_path: Path, assert_same_content: SameContent) -> None:
    out = tmp_path / "wall"
    for episodes in (7, 12):  # the second shard of the 7 has two episodes
        collect(CollectSettings(task="wall", episodes=episodes, out=out, workers=1))
    assert_same_content(out, wall_path)
    assert Store.open(out).config.episodes == 12


def test_a_finished_store_is_left_alone(wall_path: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in wall_path.iterdir()}
    collect(CollectSettings(task="wall", episodes=12, out=wall_path))
    assert {path: path.stat().st_mtime_ns for path in wall_path.iterdir()} == before


def test_the_store_knows_how_it_was_made(wall_path: Path) -> None:
    config = json.loads((wall_path / "config.json").read_text())
    expected = {"task": "wall", "seed": 0, "length": 50, "episodes": 12, "state_width": 2, "format": 1}
    assert config.items() >= expected.items()
    assert config["versions"]["numpy"] == np.__version__
    lines = [json.loads(line) for line in (wall_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["shard"], line["episodes"], line["frames"]) for line in lines] == [
        ("shard-00000.h5", 5, 250),
        ("shard-00001.h5", 5, 250),
        ("shard-00002.h5", 2, 100),
    ]
    assert all(line["bytes"] == (wall_path / line["shard"]).stat().st_size for line in lines)
    assert all(line["seconds"] > 0 for line in lines)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 1}, "collected with seed 0, not 1"),
        ({"length": 20}, "collected with length 50, not 20"),
        ({"task": "push_t", "length": 50}, "collected with task wall, not push_t"),
        ({"episodes": 11}, "has 12 episodes: expected as many or more, got 11"),
    ],
)
def test_other_settings_are_refused_by_name(wall_path: Path, change: dict[str, object], message: str) -> None:
    settings: dict[str, object] = {"task": "wall", "episodes": 12, "out": wall_path} | change
    with pytest.raises(UsageError, match=message):
        collect(CollectSettings(**settings))  # type: ignore[arg-type]


def test_a_store_of_another_data_policy_is_refused(wall_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wall, "STEP_LENGTHS", (0.2, 1.8))
    for episodes in (12, 13):  # it is finished, and is to grow
        with pytest.raises(MadeOtherwise, match="collected with another data policy than wall has now"):
            collect(CollectSettings(task="wall", episodes=episodes, out=wall_path, workers=1))


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"seed": -1}, {"length": 1}, {"workers": 0}])
def test_senseless_numbers_are_refused(tmp_path: Path, wrong: dict[str, int]) -> None:
    settings: dict[str, object] = {"task": "wall", "episodes": 1, "out": tmp_path} | wrong
    with pytest.raises(UsageError, match=f"expected --{next(iter(wrong))} of at least"):
        CollectSettings(**settings)  # type: ignore[arg-type]


def test_two_jobs_do_not_write_into_one_store(tmp_path: Path) -> None:
    with only_writer(tmp_path), pytest.raises(UsageError, match="another process is writing"):
        collect(CollectSettings(task="wall", episodes=1, out=tmp_path, workers=1))
    assert list(tmp_path.iterdir()) == []


def test_a_store_is_not_finished_with_another_simulator(tmp_path: Path) -> None:
    out = tmp_path / "wall"
    collect(CollectSettings(task="wall", episodes=1, out=out, workers=1))
    config = json.loads((out / "config.json").read_text())
    config["versions"]["pymunk"] = "6.0"
    write_json(out / "config.json", config)
    collect(CollectSettings(task="wall", episodes=1, out=out, workers=1))  # nothing is left to do
    with pytest.raises(UsageError, match=r"begun with pymunk 6.0, installed is"):
        collect(CollectSettings(task="wall", episodes=2, out=out, workers=1))
    assert Store.open(out).config.episodes == 1


def test_a_directory_of_something_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(UsageError, match="is not a store"):
        collect(CollectSettings(task="wall", episodes=1, out=tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_file_in_the_way_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "wall").write_text("precious")
    with pytest.raises(UsageError, match="expected --out to be a directory"):
        collect(CollectSettings(task="wall", episodes=1, out=tmp_path / "wall"))
    assert (tmp_path / "wall").read_text() == "precious"


def test_a_job_killed_before_it_had_a_config_can_begin_again(tmp_path: Path) -> None:
    (tmp_path / ".config.json.123.partial").write_text("{")
    collect(CollectSettings(task="wall", episodes=1, length=3, out=tmp_path, workers=1))
    assert Store.open(tmp_path).lengths.tolist() == [3]
    assert litter(tmp_path) == []


class Fragile(Wall):
    """A wall task whose scene is spoilt when the dot leaves a band."""

    low, high = 15.0, 35.0

    def spoilt(self) -> bool:
        return not self.low < self.state()[1] < self.high


def test_an_episode_ends_before_its_scene_is_spoilt(wall_path: Path) -> None:
    config, task = Store.open(wall_path).config, Fragile()
    episodes = [collect_episode(task, config, number) for number in range(20)]
    later = np.concatenate([episode.states[1:, 1] for episode in episodes])
    assert later.min() > Fragile.low
    assert later.max() < Fragile.high
    assert min(map(len, episodes)) < 50
    assert min(map(len, episodes)) >= 6  # one window of the paper's model: history 1, frameskip 5
    assert all(len(episode.actions) == len(episode) - 1 for episode in episodes)


def test_a_scene_that_is_always_spoilt_is_given_up(wall_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Fragile, "high", Fragile.low)
    monkeypatch.setattr("scope_wm.data.collect.MAX_DRAWS", 10)
    with pytest.raises(RuntimeError, match="spoilt within 6 frames in all of 10 draws"):
        collect_episode(Fragile(), Store.open(wall_path).config, 0)


def test_progress_says_rate_and_time_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("scope_wm.data.progress.LINE_SECONDS", 0.0)
    with progress("episodes", 10, 4) as advance:
        for _ in range(6):
            time.sleep(0.01)
            advance()
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["5/10", "6/10", "7/10", "8/10", "9/10", "10/10"]
    rate = float(lines[-1].split()[2].removesuffix("/s,"))
    assert 10 < rate <= 100
    assert lines[-1].endswith("0:00:00 left")
