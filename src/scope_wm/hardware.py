"""The machine that something is made on: what times depend on, and now and then the last bit of a result."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch

CPU_INFO = Path("/proc/cpuinfo")


def machine(device: torch.device) -> dict[str, Any]:
    """Describe this machine, with the device that computes."""
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
    }


def processor_name() -> str:
    """Return what the processor calls itself; elsewhere than on Linux, its architecture."""
    found = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text() if CPU_INFO.is_file() else "", re.M)
    return found[1] if found else platform.machine()


@contextmanager
def computing_with(threads: int) -> Iterator[None]:
    """Let torch compute with so many threads for a while."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def without_autocast(device: torch.device) -> AbstractContextManager[None]:
    """Let what follows compute in the precision of its arguments, on devices that would round them."""
    known = torch.amp.is_autocast_available(device.type)
    return torch.autocast(device.type, enabled=False) if known else nullcontext()
