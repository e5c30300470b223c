"""What a bug report needs, on one screen, and what to do about what is missing."""

import importlib.util
import os
import platform
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from scope_wm import __version__
from scope_wm.bench.gemm import gemm_rate
from scope_wm.model.shipped import shipped_text
from scope_wm.records import installed_versions

PACKAGES = ("torch", "numpy", "gymnasium", "pymunk", "mujoco", "opencv-python-headless", "h5py", "av", "tyro")
GIB = 1024**3


@dataclass(frozen=True, kw_only=True)
class DoctorSettings:
    """Show versions, devices and speed: what a bug report needs.

    Example: scope-wm doctor
    """


@dataclass(frozen=True, kw_only=True)
class Finding:
    """An optional part: whether it is there, and what to do if it is not."""

    name: str
    present: bool
    advice: str


def doctor(settings: DoctorSettings) -> None:
    """Print the report."""
    del settings
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in [*software(), *hardware()]:
        table.add_row(f"[bold]{name}", escape(value))
    for finding in optional_parts():
        mark = "[green]yes" if finding.present else f"[yellow]no[/]: {escape(finding.advice)}"
        table.add_row(f"[bold]{finding.name}", mark)
    Console().print(table)


def software() -> list[tuple[str, str]]:
    """Return the versions of everything that can change a result, and the models that ship with this one."""
    packages = "  ".join(f"{name} {version}" for name, version in installed_versions(PACKAGES).items())
    return [
        ("scope-wm", f"{__version__}, Python {platform.python_version()} ({sys.prefix})"),
        ("system", f"{platform.system()} {platform.release()} {platform.machine()}"),
        ("packages", packages),
        ("models", f"{shipped_text()} (scope-wm models)"),
    ]


def hardware() -> list[tuple[str, str]]:
    """Return cores, memory, disk, and every device with its measured matrix rate."""
    memory, disk = psutil.virtual_memory(), shutil.disk_usage(Path.cwd())
    rows = [
        ("processor", f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads"),
        ("memory", f"{memory.available / GIB:.1f} of {memory.total / GIB:.1f} GiB free"),
        ("disk here", f"{disk.free / GIB:.1f} of {disk.total / GIB:.1f} GiB free"),
    ]
    for device in devices():
        label = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
        rows.append(("device", f"{label}: {gemm_rate(device):.0f} GFLOP/s (float32, 2048 x 2048 products)"))
    return rows


def devices() -> list[torch.device]:
    """Return the devices that torch can compute on here."""
    found = [torch.device("cpu")]
    found += [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        found.append(torch.device("mps"))
    return found


def optional_parts() -> list[Finding]:
    """Return what is nice to have: a GPU, a compiler, the extras of the package."""
    return [
        Finding(
            name="GPU",
            present=len(devices()) > 1,
            advice="everything runs on the processor; for a GPU install the torch build for your driver",
        ),
        Finding(
            name="C++ compiler",
            present=shutil.which("c++") is not None,
            advice="torch.compile needs one on the processor: install g++ or clang",
        ),
        Finding(
            name="hub",
            present=all(map(importlib.util.find_spec, ("transformers", "huggingface_hub"))),
            advice="for DINOv2 and other encoders of the hub: pip install '.[hub]' in a clone of the project",
        ),
        Finding(
            name="developer tools",
            present=importlib.util.find_spec("pytest") is not None,
            advice="to run the tests: make setup, or pip install '.[dev]', in a clone of the project",
        ),
    ]
