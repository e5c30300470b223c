import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.evaluate.conftest import INSTANCES, SEARCH, content, settings

from scope_wm.cli import main
from scope_wm.evaluate.runner import run
from scope_wm.files import only_writer
from scope_wm.types import UsageError


def exit_code(words: Sequence[str]) -> int:
    try:
        return main(["evaluate", *words])
    except SystemExit as stop:  # of tyro, for what it can tell by itself
        return int(stop.code or 0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--model simulator --instances 0", "expected --instances of at least 1, got 0"),
        ("--model simulator --horizon 0", "expected --horizon of at least 1, got 0"),
        ("--model simulator --max-steps 0", "expected --max-steps of at least 1, got 0"),
        ("--model simulator --workers 0", "expected --workers of at least 1, got 0"),
        ("--model simulator --max-seconds 0", "expected finite --max-seconds above 0, got 0"),
        ("--model simulator --max-seconds inf", "expected finite --max-seconds above 0, got inf"),
        ("--model runs/none --alpha inf", "expected a finite --alpha of at least 0, got inf"),
        ("--model simulator --max-memory 0B", "expected memory of at least 1, got 0"),
        ("--model simulator --elites 0", "expected --elites of at least 1, got 0"),
        ("--model simulator --samples 5", "got 10 elites of 5 samples"),
        ("--model simulator --first-samples 0", "expected --first-samples of at least 2, got 0"),
        (
            "--model simulator --planner icem --first-samples 9",
            "--iterations are for cem and eb-cem, got icem",
        ),
        ("--model simulator --planner mppi --iterations 5", "are for cem and eb-cem, got mppi"),
        ("--model simulator --planner cem --iterations 0", "expected --iterations of at least 1, got 0"),
        ("--model simulator --planner mppi --samples 5", "are for cem and eb-cem, got mppi"),
        ("--model simulator --planner gradient", "a simulator has no gradient"),
        ("--model runs/none --planner gradient --precision int8", "products in int8 have no gradient"),
        ("--model simulator --planner cma-es", "cma-es"),
        ("--model simulator --k 32", "--model simulator takes no --k"),
        ("--model simulator --true-dynamics", "--model simulator takes no --true-dynamics"),
        ("--model runs/none --true-dynamics --k 32", "--true-dynamics takes no --k: nothing is imagined"),
        ("--model runs/none --true-dynamics --compile", "--true-dynamics takes no --compile"),
        ("--model runs/none --true-dynamics --planner gradient", "a simulator has no gradient"),
        ("--model simulator --max-memory 2GB", "it takes no --max-memory"),
        ("--model simulator --max-memory lots", "expected bytes, such as 2GB or 512MiB, got 'lots'"),
        ("--model simulator --device cuda", "simulator runs on the processor, got --device cuda"),
        ("--model runs/none --planner gradient --max-memory 2GB", "give --chunk"),
        ("--model runs/none --device cuda:99", "expected a device of this machine, got cuda:99"),
        ("--model no/such/model", "there is no model directory no/such/model"),
        ("--model simulator --problems-from no/such/store", "there is no store at no/such/store"),
    ],
)
def test_bad_input_is_wrong_usage_and_leaves_nothing(
    options: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    assert exit_code(["--task", "wall", "--out", str(out), *options.split()]) == 2
    assert message in " ".join(capsys.readouterr().err.replace("│", " ").split())
    assert not out.exists()


def test_more_instances_than_the_store_has_problems_are_refused(
    tmp_path: Path, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--task", "wall", "--model", "simulator", "--problems-from", str(store), "--instances", "26"]
    assert exit_code([*words, "--out", str(tmp_path / "run")]) == 2
    assert "expected a store of at least 26 problems" in capsys.readouterr().err
    with pytest.raises(UsageError, match=r"expected a store of at least 26 problems, .* has \d+"):
        run(settings(tmp_path / "run", problems_from=store, instances=26))  # 25 starts in 50 frames
    with pytest.raises(UsageError, match=r"expected a store of rope, .* is one of wall"):
        run(settings(tmp_path / "run", task="rope", problems_from=store))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 1}, "was evaluated with seed 0, not 1"),
        ({"task": "point_maze"}, "was evaluated with task wall, not point_maze"),
        ({"search": replace(SEARCH, planner="cem")}, "with planner eb-cem, not cem"),
        ({"search": replace(SEARCH, max_steps=None)}, "with max_steps 2, not 15"),
    ],
)
def test_other_settings_in_the_same_directory_are_refused(
    finished: Path, changes: dict[str, Any], message: str
) -> None:
    before = content(finished)
    with pytest.raises(UsageError, match=message):
        run(settings(finished, **changes))
    assert content(finished) == before


@pytest.mark.parametrize(
    ("part", "name", "was"), [("versions", "torch", "1.0"), ("machine", "processor", "Another")]
)
def test_instances_of_other_versions_and_machines_are_not_mixed(
    tmp_path: Path, finished: Path, part: str, name: str, was: str
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    config = json.loads((out / "config.json").read_text())
    config[part][name] = was
    (out / "config.json").write_text(json.dumps(config))
    before = content(out)
    run(settings(out))  # nothing is missing, so nothing is mixed
    with pytest.raises(UsageError, match=f"was begun with {name} {was}, here it is "):
        run(settings(out, instances=INSTANCES + 1))
    assert content(out) == before


@pytest.mark.parametrize("changes", [{}, {"instances": 8}, {"seed": 1}])
def test_two_processes_do_not_write_to_one_run(
    tmp_path: Path, finished: Path, changes: dict[str, Any]
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (out / ".summary.json.1.partial").write_text("the other is writing this")
    before = content(out)
    with only_writer(out), pytest.raises(UsageError, match="another process is writing into"):
        run(settings(out, **changes))
    assert content(out) == before


def test_a_directory_of_something_else_is_not_written_to(tmp_path: Path, store: Path) -> None:
    before = content(store)
    with pytest.raises(UsageError, match=r"is not a run of scope-wm evaluate"):
        run(settings(store))
    assert content(store) == before
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(
            UsageError, match=r"expected --out to name a place in directories, .*file is a file"
        ):
            run(settings(out))
    assert (tmp_path / "file").read_text() == "mine"
