"""Tasks by name: the five, and those of other people as `module:Class`."""

from pathlib import Path

import pytest

from scope_wm.cli import main
from scope_wm.tasks import TASKS, find_task
from scope_wm.types import UsageError

MODULE = """
from scope_wm.tasks.wall import Wall

class Room(Wall):
    name = "{module}:Room"

class Renamed(Wall):
    pass

class Half:
    name = "{module}:Half"
    frameskip = 1

number = 3
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Write a module with tasks that Python finds, and return its name, which is new."""
    name = f"tasks_of_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE.format(module=name))
    monkeypatch.syspath_prepend(tmp_path)
    return name


def test_a_task_is_found_by_its_name_or_where_it_is(module: str) -> None:
    assert find_task("wall") is TASKS["wall"]
    assert find_task(f"{module}:Room").name == f"{module}:Room"
    assert f"{module}:Room" not in TASKS


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("walll", "expected a task of point_maze, .* or your own as module:Class, got 'walll'"),
        (":Room", "module:Class, got ':Room'"),
        ("no_such_module:Room", "No module named 'no_such_module': install it, or .*PYTHONPATH"),
        ("{module}:Roam", "expected {module} to have the class Roam"),
        ("{module}:number", "expected {module} to have the class number"),
        ("{module}:Half", "everything of Task, it lacks action_space, action_width, advance, .*, success"),
        ("{module}:Renamed", "expected {module}:Renamed to have that very name, it is 'wall'"),
    ],
)
def test_what_is_no_task_is_refused(module: str, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message.format(module=module)):
        find_task(name.format(module=module))


def test_the_command_line_refuses_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["collect", "--task", "walll", "--episodes", "1", "--out", str(tmp_path / "store")])
    assert stop.value.code == 2
    assert "walll" in capsys.readouterr().err
    assert not (tmp_path / "store").exists()
