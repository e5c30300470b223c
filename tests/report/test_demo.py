from pathlib import Path

import pytest
from tests.report.browser import CHROMIUM, PHONE, shown

from scope_wm.cli import main
from scope_wm.report import demo
from scope_wm.tasks import find_task


def test_shipped_models_plan_side_by_side(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = next(iter(demo.PROBLEMS))
    monkeypatch.setattr(demo, "PROBLEMS", {name: demo.PROBLEMS[name]})
    assert main(["demo", "--out", str(tmp_path / "demo"), "--max-steps", "1", "--samples", "10"]) == 0
    told, page = capsys.readouterr(), (tmp_path / "demo/report.html").read_text()
    for way in demo.WAYS:
        assert f"{name}, {way.model}, {way.planner}" in told.err  # while it plans
        assert f"| {name} | {way.model} | {way.planner} |" in told.out
    assert "times as fast" in told.out
    assert told.out.strip().endswith("report.html")
    assert page.count("data:video/mp4") == len(demo.WAYS)
    if CHROMIUM is not None:
        seen = shown(tmp_path / "demo/report.html", tmp_path, PHONE, dark=False)
        assert (seen["broken"], seen["wide"], seen["complaints"]) == (0, 0, [])
        assert seen["videos"] == len(demo.WAYS)


@pytest.mark.parametrize(("samples", "elites"), [(10, 2), (50, 5), (None, None)])
def test_fewer_candidates_have_fewer_elites(samples: int | None, elites: int | None) -> None:
    assert demo.DemoSettings(samples=samples).search(demo.DENSE).elites == elites


def test_problems_are_different_and_begin_unsolved() -> None:
    task = find_task(demo.TASK)()
    drawn = [task.sample_problem(seed) for seed in demo.PROBLEMS.values()]
    assert len({problem.start.tobytes() for problem in drawn}) == 3
    assert not any(task.success(problem.start, problem.goal) for problem in drawn)


@pytest.mark.parametrize("options", [("--max-steps", "0"), ("--samples", "3")])
def test_what_cannot_be_planned_is_refused(
    options: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["demo", *options])
    assert stopped.value.code == 2
    assert f"expected {options[0]} of at least" in capsys.readouterr().err
