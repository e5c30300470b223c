import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from scope_wm.cli import main
from scope_wm.model import shipped
from scope_wm.shipping.card import planner_text
from scope_wm.shipping.listing import result_text
from scope_wm.shipping.record import Result, read_record


def test_the_list_has_every_model_with_what_it_is_and_has_achieved(
    ships: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["models"]) == 0
    head, dense, fast, faster = capsys.readouterr().out.splitlines()
    assert head.split() == ["name", "task", "K", "parameters", "size", "results"]
    record = read_record(ships / "wall" / "faster")
    size = sum(file.stat().st_size for file in (ships / "wall" / "faster").iterdir())
    words = faster.split()
    assert words[:4] == ["wall/faster", "wall", "32", f"{record.parameters:,}"]
    assert float(words[4]) == pytest.approx(size / 1000, abs=0.06)
    (result,) = record.results
    assert faster.rstrip().endswith(f"  {result.solved} of 2 solved, {planner_text(result)}")
    assert dense.split()[:3] == ["wall/dense", "wall", "196"]
    assert fast.split()[:3] == ["wall/fast", "wall", "98"]
    assert "not evaluated" in dense


def test_without_models_the_list_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    assert main(["models"]) == 0
    assert capsys.readouterr().out == "no models ship with this version\n"


def test_a_task_without_a_rule_of_success_has_distances() -> None:
    result = Result(
        planner="cem",
        other="",
        instances=10,
        all_of=10,
        solved=None,
        start_distance=0.25,
        final_distance=0.125,
        plan_seconds=1.0,
        weights="float16",
        machine="",
    )
    assert result_text(result) == "distance 0.25 to 0.125 in 10, cem"
    assert result_text(replace(result, all_of=20)) == "distance 0.25 to 0.125 in the first 10, cem"


@pytest.mark.parametrize(
    ("content", "message"), [("{", "is not JSON"), ("{}", "missing"), (None, "has no record.json")]
)
def test_a_damaged_record_is_named(
    ships: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    content: str | None,
    message: str,
) -> None:
    shutil.copytree(ships, tmp_path / "copy")
    monkeypatch.setattr(shipped, "FOLDER", tmp_path / "copy")
    file = tmp_path / "copy" / "wall" / "fast" / "record.json"
    file.unlink() if content is None else file.write_text(content)
    assert main(["models"]) == 2
    told = capsys.readouterr().err
    assert message in told
    assert str(file.parent) in told


def test_the_doctor_names_the_models(
    ships: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("scope_wm.doctor.gemm_rate", lambda device: 1.0)
    assert main(["doctor"]) == 0
    assert "wall/dense, wall/fast, wall/faster" in capsys.readouterr().out
