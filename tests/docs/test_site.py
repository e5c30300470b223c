"""The site builds without a warning: every link leads somewhere, every page is in the menu."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def text_of(page: Path) -> str:
    """Return what a page shows, without tags."""
    return re.sub(r"<[^>]+>", "", page.read_text())


def test_the_site_builds_with_the_example_and_the_reference(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(build, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "class Puck(gymnasium.Env" in text_of(tmp_path / "own-task.html")
    assert "Plan towards one goal at a time" in text_of(tmp_path / "api" / "planning.html")
