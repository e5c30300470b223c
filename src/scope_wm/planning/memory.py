"""Bytes: what a user means by 2GB, and what a search may take of a machine when the user does not say.

The share depends on how large the machine is, not on what happens to be free: two batch sizes round
differently, and the same command is to give the same plan twice.
"""

import os
import re

import psutil
import torch

PREFIXES = "KMGT"


def parse_bytes(text: str) -> int:
    """Return the bytes of a text such as 2GB, 1.5 GiB or 800MB."""
    found = re.fullmatch(rf"(\d+(?:\.\d+)?) ?([{PREFIXES}]?)(i?)B", text, re.IGNORECASE)
    if found is None:
        raise ValueError(f"expected bytes, such as 2GB or 512MiB, got {text!r}")
    number, prefix, binary = found.groups()
    power = PREFIXES.index(prefix.upper()) + 1 if prefix else 0
    return int(float(number) * (1024 if binary else 1000) ** power)


def fair_share(device: torch.device, processes: int = 1) -> int:
    """Return each process's part of half a GPU's memory; on a processor, one core's of half the machine's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // (2 * processes)
    return int(psutil.virtual_memory().total // (2 * (os.cpu_count() or 1)))
