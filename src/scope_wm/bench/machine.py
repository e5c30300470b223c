"""The machine that something was measured on, and how many of its cores torch may use."""

import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch

CPU_INFO = Path("/proc/cpuinfo")


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What a time depends on."""

    processor: str
    cores: int
    memory: int  # bytes
    torch: str
    threads: int


def this_machine() -> Machine:
    """Describe the machine as torch uses it now."""
    return Machine(
        processor=processor_name(),
        cores=os.cpu_count() or 1,
        memory=int(psutil.virtual_memory().total),
        torch=torch.__version__,
        threads=torch.get_num_threads(),
    )


def processor_name() -> str:
    """Return what the processor calls itself; elsewhere than on Linux, its architecture."""
    found = re.search(r"^model name\s*:\s*(.+)$", CPU_INFO.read_text() if CPU_INFO.is_file() else "", re.M)
    return found[1] if found else platform.machine()


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads, and afterwards as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
