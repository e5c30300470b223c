"""The five tasks by name; importing them registers their Gymnasium ids, such as `ScopeWM/PushT-v0`."""

import gymnasium

from scope_wm.tasks.granular import Granular
from scope_wm.tasks.point_maze import PointMaze
from scope_wm.tasks.push_t import PushT
from scope_wm.tasks.rope import Rope
from scope_wm.tasks.task import Task
from scope_wm.tasks.wall import Wall

TASKS: dict[str, type[Task]] = {task.name: task for task in (PointMaze, Wall, PushT, Rope, Granular)}

for _task in TASKS.values():
    gymnasium.register(id=f"ScopeWM/{_task.__name__}-v0", entry_point=f"{_task.__module__}:{_task.__name__}")
