import shutil
from pathlib import Path

import pytest

from scope_wm.cli import main


def test_a_store_on_one_screen(wall_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", str(wall_path)]) == 0
    shown = capsys.readouterr().out
    lines = dict(line.split(maxsplit=1) for line in shown.splitlines()[1:])
    assert len(lines) < 24
    assert lines["task"] == "wall"
    assert lines["episodes"] == "12"
    assert lines["frames"] == "600, 50 to 50 in an episode"
    assert lines["split"] == "10 episodes for training, 2 for validation"
    assert "in 3 shards" in lines["size"]
    assert lines["actions"].startswith("mean [")


def test_an_unfinished_store_says_so(
    wall_path: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shutil.copytree(wall_path, tmp_path / "copy")
    (path / "shard-00001.h5").unlink()
    assert main(["data", "info", str(path)]) == 0
    assert "7 of 12: the collect command that began it goes on" in capsys.readouterr().out
    for shard in path.glob("*.h5"):
        shard.unlink()
    assert main(["data", "info", str(path)]) == 0
    assert "0 of 12" in capsys.readouterr().out


def test_the_speed_is_shown_when_asked_for(wall_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "info", str(wall_path), "--speed"]) == 0
    assert "without frames" in capsys.readouterr().out
