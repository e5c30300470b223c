"""How much memory planning takes.

On a processor it is the peak resident size of this process above its size before planning; on a GPU, the most
that torch had allocated there, the model included.
"""

import re
from pathlib import Path

import torch

PROCESS = Path("/proc/self")


class PeakMemory:
    """Tell the peak since the last restart, where the system knows it: Linux and CUDA."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.before = resident("VmRSS")

    def restart(self) -> None:
        """Forget earlier peaks, such as that of loading a model."""
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return
        try:
            (PROCESS / "clear_refs").write_text("5")  # 5: set the high-water mark to the present size
        except OSError:
            self.before = None  # an older peak cannot be told from a new one: measure nothing

    def peak(self) -> int | None:
        """Return the bytes of the peak since the restart, or None where the system does not tell."""
        if self.device.type == "cuda":
            return int(torch.cuda.max_memory_allocated(self.device))
        peak = resident("VmHWM")
        return None if peak is None or self.before is None else max(peak - self.before, 0)


def resident(what: str) -> int | None:
    """Return what Linux knows of this process, in bytes: VmRSS is its size, VmHWM the peak of it."""
    status = PROCESS / "status"
    found = re.search(rf"^{what}:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.is_file() else None
    return None if found is None else 1024 * int(found[1])
