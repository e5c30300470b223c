"""The five tasks by name, and tasks of your own; importing them registers ids such as `ScopeWM/PushT-v0`.

A task outside of this package is named `module:Class`, as in `--task puck:Puck`, and that is its `name` too,
so that a store or a model tells where its task is. The module has to be one that Python finds.
"""

import importlib
from functools import cache
from typing import TYPE_CHECKING, Annotated

import gymnasium
from tyro.constructors import PrimitiveConstructorSpec

from scope_wm.tasks.granular import Granular
from scope_wm.tasks.point_maze import PointMaze
from scope_wm.tasks.push_t import PushT
from scope_wm.tasks.rope import Rope
from scope_wm.tasks.task import Task, missing_members
from scope_wm.tasks.wall import Wall
from scope_wm.types import UsageError

if TYPE_CHECKING:
    TaskClass = type[Task]
else:
    TaskClass = type  # at run time no class can be checked against a protocol that has data members

TASKS: dict[str, TaskClass] = {task.name: task for task in (PointMaze, Wall, PushT, Rope, Granular)}

for _task in TASKS.values():
    gymnasium.register(id=f"ScopeWM/{_task.__name__}-v0", entry_point=f"{_task.__module__}:{_task.__name__}")


@cache
def find_task(name: str) -> TaskClass:
    """Return the task of a name: one of the five, or a class `module:Class` that is complete."""
    if name in TASKS:
        return TASKS[name]
    where, _, kind = name.partition(":")
    if not (where and kind):
        raise UsageError(f"expected a task of {', '.join(TASKS)} or your own as module:Class, got {name!r}")
    try:
        module = importlib.import_module(where)
    except ModuleNotFoundError as error:
        raise UsageError(f"{name}: {error}: install it, or put its folder into PYTHONPATH") from error
    found = getattr(module, kind, None)
    if not isinstance(found, type):
        raise UsageError(f"expected {where} to have the class {kind}, it does not: {module.__file__}")
    if missing := missing_members(found()):
        raise UsageError(f"expected {name} to have everything of Task, it lacks {', '.join(missing)}")
    task: TaskClass = found
    if task.name != name:
        raise UsageError(f"expected {name} to have that very name, it is {task.name!r}")
    return task


def _existing(words: list[str]) -> str:
    find_task(words[0])
    return words[0]


TaskName = Annotated[
    str,
    PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"{{{','.join(TASKS)},MODULE:CLASS}}",
        instance_from_str=_existing,
        is_instance=lambda value: isinstance(value, str),
        str_from_instance=lambda name: [name],
    ),
]
