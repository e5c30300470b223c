"""Every command and every piece of Python of the guide and the README works.

A page is followed from top to bottom in a folder of its own, in this process, on less work than it asks for:
SMALLER sets options of its commands, `conftest.py` makes presets and searches small, and a random DINOv2 is
used for that of the hub; nothing else is changed. PARSED commands are not run, but have to be spelled right.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

from scope_wm.cli import COMMANDS, command_name, main, parsed

ROOT = Path(__file__).parents[2]
FENCED = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

FIT = {"--fit.max-samples": "8", "--fit.batch": "4", "--fit.validations": "1"}
SIZES = {f"--model.transformer.{name}": "1" for name in ("depth", "heads", "head-width", "mlp-width")}
SMALLER = {
    "collect": {"--episodes": "3", "--length": "30", "--workers": "1"},
    "encode": {"--workers": "1"},
    "train encoder": {"--frames": "8", "--held-out": "4", **FIT},
    "train teacher": {**SIZES, **FIT},
    "train selector": {"--windows": "8", **FIT},
    "train sparse": FIT,
    "train refine": FIT,
    "run": {"--workers": "1"},
    "plan": {"--max-steps": "1"},
    "evaluate": {"--instances": "2", "--max-steps": "1"},
    "report": {"--videos": "0"},
    "models add": {"--out": "shipped"},  # not into the package
    "bench tasks": {"--seconds": "0.01"},
}
PARSED = {
    "import dino-wm": "needs a released checkpoint; tests/model/test_dino_wm.py imports one",
    "bench plan": "measures for hours; tests/bench/test_plan.py runs it",
    "bench scaling": "measures for many minutes; tests/bench/test_scaling.py runs it",
}
LAUNCHED = "scope_wm"  # the word after `accelerate launch ... -m`; tests/train launches two processes
OTHER_WORDS = {"make", "source", "export", "accelerate"}


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Yield what stands between the fences of a page, if it is in one of the languages."""
    for language, text in FENCED.findall(page.read_text()):
        if language in languages:
            yield text


def lines(page: Path, program: str) -> Iterator[list[str]]:
    """Yield the words of every line of shell that begins with a program, without that."""
    for block in blocks(page, "bash", ""):
        for line in block.replace("\\\n", " ").splitlines():
            if line.lstrip().startswith(f"{program} "):
                words = line.replace("$task", "wall")  # the variable of a loop over tasks
                yield shlex.split(words, comments=True)[1:]


def commands(page: Path) -> list[list[str]]:
    """Return the words of every command of ours."""
    return list(lines(page, "scope-wm"))


def smaller(words: list[str]) -> list[str]:
    """Return a command that does the same with less."""
    words = list(words)
    for option, value in SMALLER.get(command_name(words), {}).items():
        if option in words:
            words[words.index(option) + 1] = value
        else:
            words += [option, value]
    return words


def parse(words: list[str]) -> str:
    """Parse a command as it stands, and return its name."""
    name = command_name(words)
    parsed(name, words[len(name.split()) :])
    return name


def named(paths: list[Path]) -> list[object]:
    """Return the pages as parameters that are called by their names."""
    return [pytest.param(path, id=path.stem) for path in paths]


@pytest.mark.parametrize("page", named([page for page in PAGES if commands(page)]))
def test_every_command_works(page: Path, workspace: Path, dinov2: Path) -> None:
    stand_ins = {"facebook/dinov2-small": str(dinov2)}
    for words in commands(page):
        name = parse(words)
        if name not in PARSED:
            own = [stand_ins.get(word, word) for word in smaller(words)]
            assert main(own) == 0, f"{page.name}: scope-wm {shlex.join(words)}"


@pytest.mark.parametrize("page", named([page for page in PAGES if any(lines(page, "accelerate"))]))
def test_a_launched_command_is_spelled_right(page: Path) -> None:
    for words in lines(page, "accelerate"):
        parse(words[words.index(LAUNCHED) + 1 :])


@pytest.mark.parametrize("page", named(PAGES))
def test_no_line_of_shell_is_overlooked(page: Path) -> None:
    assert len(commands(page)) == len(re.findall(r"^ *scope-wm ", page.read_text(), re.MULTILINE))
    for block in blocks(page, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            assert not words or words[0] in {"scope-wm", *OTHER_WORDS}, line


def test_what_is_made_smaller_or_only_parsed_is_a_command() -> None:
    assert set(SMALLER) | set(PARSED) <= set(COMMANDS)


@pytest.mark.parametrize("page", named([page for page in PAGES if any(blocks(page, "python"))]))
def test_every_piece_of_python_works(page: Path, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    image, proprio = np.zeros((480, 640, 3), np.uint8), np.zeros(2)
    camera = SimpleNamespace(read=lambda: (True, image), set=lambda *_: True)
    monkeypatch.setattr(cv2, "VideoCapture", lambda number: camera)
    executed = list[np.ndarray]()
    robot = SimpleNamespace(
        wait_until_placed=lambda: None,
        proprio=lambda: proprio,
        step=executed.append,
        operator_says_done=lambda: True,
    )
    names: dict[str, object] = {"robot": robot}
    for block in blocks(page, "python"):
        exec(compile(block, page.name, "exec"), names)
    assert len(executed) == (25 if page.stem == "robot" else 0)
