"""How much memory planning takes: the peak resident size of this process above its size before planning."""

import re
from pathlib import Path

PROCESS = Path("/proc/self")


class PeakMemory:
    """Remember the resident size before planning, and tell how far peaks rise above it; Linux only."""

    def __init__(self) -> None:
        self.before = resident("VmRSS")

    def restart(self) -> None:
        """Forget earlier peaks, such as that of loading a model."""
        try:
            (PROCESS / "clear_refs").write_text("5")  # 5: set the high-water mark to the present size
        except OSError:
            self.before = None  # an older peak cannot be told from a new one: measure nothing

    def above(self) -> int | None:
        """Return the bytes of the peak since the restart, or None where the system does not tell."""
        peak = resident("VmHWM")
        return None if peak is None or self.before is None else max(peak - self.before, 0)


def resident(what: str) -> int | None:
    """Return what Linux knows of this process, in bytes: VmRSS is its size, VmHWM the peak of it."""
    status = PROCESS / "status"
    found = re.search(rf"^{what}:\s+(\d+) kB", status.read_text(), re.MULTILINE) if status.is_file() else None
    return None if found is None else 1024 * int(found[1])
