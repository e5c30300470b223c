"""Reading a foreign pickle of whole torch modules without running anything of it.

Every class and function that the pickle names is replaced by one that only stores, and torch's weights-only
reader, which calls nothing that it was not told to, does the rest. What is left are tensors by their names.
"""

from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from pickle import UnpicklingError
from typing import Any
from zipfile import BadZipFile, ZipFile

import torch
from torch import Tensor

from scope_wm.types import UsageError

# What the readers raise at nonsense; none of it comes from code of the file.
DAMAGED = (
    BadZipFile,
    UnpicklingError,
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    LookupError,
    EOFError,
)
# What `defaultdict`, which holds the state of an optimizer, is given to make its entries with.
FACTORY = "builtins.dict"


class Inert:
    """What stands for everything that a pickle names: it keeps the state it is given and does nothing."""

    def __init__(self, *arguments: object) -> None:
        self.state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


def read_inert(file: Path, packages: Collection[str]) -> object:
    """Read what `torch.save` wrote, all objects inert; refuse a file that names other packages than these."""
    damaged = f"{file} is damaged, or not a file of torch.save"
    try:
        with ZipFile(file) as archive:
            if altered := archive.testzip():  # torch does not look at the checksums
                raise BadZipFile(f"{altered} is not as it was saved")
        names = torch.serialization.get_unsafe_globals_in_checkpoint(file)
    except DAMAGED as error:
        raise UsageError(f"{damaged}: {error}") from error
    if foreign := sorted(n for n in names if n.split(".")[0] not in packages and n != FACTORY):
        raise UsageError(
            f"{file} is refused, nothing of it was run: it calls for {', '.join(foreign)}, "
            f"and a file of its kind for nothing but {', '.join(sorted(packages))}"
        )
    stubs: list[Callable[..., Any] | tuple[Callable[..., Any], str]] = [
        (_plain_dict if name == "collections.defaultdict" else Inert, name) for name in names
    ]
    try:
        with torch.serialization.safe_globals(stubs):
            return torch.load(file, map_location="cpu", weights_only=True)
    except DAMAGED as error:
        raise UsageError(f"{damaged}: {error}") from error


def tensors(module: object, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the parameters and buffers of an inert module and of those in it, by their dotted names."""
    state = module.state if isinstance(module, Inert) and isinstance(module.state, dict) else {}
    parameters, buffers, children = (state.get(kind) for kind in ("_parameters", "_buffers", "_modules"))
    if not (isinstance(parameters, dict) and isinstance(buffers, dict) and isinstance(children, dict)):
        raise UsageError(f"expected a pickled torch module as {name}, got another object")
    for key, value in {**parameters, **buffers}.items():
        if isinstance(value, Tensor):
            yield f"{name}.{key}", value.detach()
    for key, child in children.items():
        yield from tensors(child, f"{name}.{key}")


def _plain_dict(*arguments: object) -> dict[object, object]:
    """Stand for `defaultdict`, because torch's reader fills nothing but plain dicts."""
    return {}
