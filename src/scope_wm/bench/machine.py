"""The machine that something was measured on."""

import os
from dataclasses import dataclass

import psutil
import torch

from scope_wm.hardware import processor_name


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
