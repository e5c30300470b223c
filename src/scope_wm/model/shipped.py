"""World models that ship with the package, by name: `<task>/{dense,fast,faster}`.

dense     every token has full dynamics
fast      98 tokens have, the others are updated cheaply
faster    32 tokens have
"""

from importlib.resources import files
from pathlib import Path

from scope_wm.files import CONFIG
from scope_wm.tasks import TASKS
from scope_wm.types import UsageError

FOLDER = Path(str(files("scope_wm") / "shipped"))
NAMES = ("dense", "fast", "faster")


def shipped_models() -> dict[str, Path]:
    """Return the directories of the shipped models by name, task after task, the dense one first."""
    places = {f"{task}/{name}": FOLDER / task / name for task in TASKS for name in NAMES}
    return {name: place for name, place in places.items() if (place / CONFIG).is_file()}


def is_shipped_name(source: str) -> bool:
    """Tell whether a name is one of ours to give, though there may be no such model."""
    owner, _, name = source.partition("/")
    return owner in TASKS and name != "" and "/" not in name


def shipped_model(name: str) -> Path:
    """Return the directory of a shipped model, or say which there are."""
    if found := shipped_models().get(name):
        return found
    raise UsageError(f"there is no model {name}, as a directory or shipped; shipped are: {shipped_text()}")


def shipped_text() -> str:
    """Return the names of all shipped models as text."""
    return ", ".join(shipped_models()) or "none"
