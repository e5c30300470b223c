import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from scope_wm.cli import main
from scope_wm.evaluate.compare import compare_records, pair, times_compare, verdict
from scope_wm.evaluate.instances import InstanceRecord
from scope_wm.evaluate.run import read_run, run_config
from scope_wm.evaluate.settings import EvaluateSettings
from scope_wm.evaluate.summary import summarise
from scope_wm.files import write_json
from scope_wm.planning.load import ModelSettings
from scope_wm.records import to_json
from scope_wm.types import UsageError


def records(successes: Sequence[int], distances: Sequence[float], seconds: float) -> list[InstanceRecord]:
    """Make records by hand: instance i starts at distance 100 + i."""
    return [
        InstanceRecord(
            instance=i,
            seed=99 * i + 1,
            success=bool(success),
            steps=2,
            start_distance=100.0 + i,
            final_distance=distance,
            path_left=distance,
            plan_seconds=seconds,
            samples=100,
            peak_memory=None,
        )
        for i, (success, distance) in enumerate(zip(successes, distances, strict=True))
    ]


FIRST = records([1] * 8, [1.0, 2.0] * 4, 3.0)
OTHER = records([0] * 6 + [1, 1], [3.0, 4.0] * 4, 1.5)


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Write a finished run."""

    def save(name: str, lines: Sequence[InstanceRecord], task: str = "wall") -> Path:
        path = tmp_path / name
        path.mkdir()
        settings = EvaluateSettings(
            task=task, model=ModelSettings(model="simulator"), out=path, instances=len(lines)
        )
        write_json(path / "config.json", run_config(settings))
        text = "".join(json.dumps(asdict(line)) + "\n" for line in lines)
        (path / "instances.jsonl").write_text(text)
        write_json(path / "summary.json", to_json(summarise(settings, lines)))
        return path

    return save


def test_runs_are_compared_instance_by_instance() -> None:
    result = compare_records(FIRST, OTHER)
    assert result.p_success == 2 / 2**6  # six instances that only the first solves
    assert result.distance_difference == 2.0
    assert result.distance_interval == (2.0, 2.0)  # exactly 2 longer in every pair
    assert result.p_distance == 2 / 2**8
    assert result.time_ratio == 0.5
    assert verdict("other", result) == "other: significant: success, final distance"


def test_what_is_not_significant_is_said() -> None:
    unclear = [replace(record, final_distance=1.5, success=i > 0) for i, record in enumerate(FIRST)]
    text = verdict("other", compare_records(FIRST, unclear))
    assert text == "other: not significant at 5 %: success, final distance"
    mixed = [replace(record, final_distance=9.0) for record in FIRST]
    text = verdict("other", compare_records(FIRST, mixed))
    assert text == "other: not significant at 5 %: success; significant: final distance"


def test_a_table_and_a_sentence_are_printed(
    saved: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(saved("a", FIRST)), str(saved("b", OTHER))]) == 0
    shown = capsys.readouterr().out
    for text in ("100.0 %", "25.0 %", "0.0312", "+2", "0.50", "8 instances", "significant: success, final"):
        assert text in " ".join(shown.split())


def test_problems_may_differ_by_rounding_only(saved: Callable[..., Path]) -> None:
    runs = [
        read_run(saved(name, [replace(FIRST[0], start_distance=start)]))
        for name, start in (("first", 1.0), ("rounded", 1.0 + 1e-15), ("other", 1.1))
    ]
    pair(runs[:2])
    with pytest.raises(UsageError, match="starts elsewhere"):
        pair([runs[0], runs[2]])


def test_what_else_differs_is_named_and_times_are_qualified(
    saved: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    first, same, other = (saved(name, FIRST) for name in ("first", "same", "other"))
    config = json.loads((same / "config.json").read_text())
    del config["settings"]["true_dynamics"]  # an older run
    (same / "config.json").write_text(json.dumps(config))
    config = json.loads((other / "config.json").read_text())
    config["settings"] |= {"max_steps": 3, "workers": 7}
    config["versions"]["torch"] = "1.0"
    (other / "config.json").write_text(json.dumps(config))
    assert main(["compare", str(first), str(same)]) == 0
    shown = capsys.readouterr().out
    assert "not as the first" not in shown
    assert "*" not in shown
    assert main(["compare", str(first), str(other)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "not as the first: " in shown
    for text in (
        "max_steps 3 (first 15)",
        "workers 7 (first ",
        "torch 1.0 (first ",
        "1.00 *",
        "do not compare",
    ):
        assert text in shown


def test_times_of_a_run_whose_workers_changed_compare_with_no_other(saved: Callable[..., Path]) -> None:
    paths = [saved(name, FIRST) for name in ("first", "other")]
    first, other = map(read_run, paths)
    assert times_compare(first, other)
    for run in (first, other):
        run.config["settings"]["workers"] = "1, then 2"
    assert times_compare(first, first)
    assert not times_compare(first, other)


def test_runs_of_different_length_are_compared_on_what_they_share(
    saved: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["compare", str(saved("a", FIRST)), str(saved("b", OTHER[:5]))]) == 0
    shown = capsys.readouterr().out
    assert "5 instances" in shown
    assert "0.0625" in shown  # five pairs, all for the first


def test_a_task_without_a_rule_of_success_is_compared_by_distance(
    saved: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    chamfer = [[replace(record, success=False) for record in lines] for lines in (FIRST, OTHER)]
    paths = [str(saved(name, lines, "rope")) for name, lines in zip("ab", chamfer, strict=True)]
    assert main(["compare", *paths]) == 0
    shown = capsys.readouterr().out
    assert "%" not in shown
    assert "significant: final distance" in " ".join(shown.split())


def test_runs_that_do_not_compare_are_refused(
    saved: Callable[..., Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    first = saved("a", FIRST)
    unfinished = saved("unfinished", OTHER)
    (unfinished / "summary.json").unlink()
    moved = [replace(record, start_distance=7.0) for record in OTHER]
    refused = {
        saved("rope", OTHER, "rope"): "on task wall",
        saved("moved", moved): "instance 0 of",
        unfinished: "is not finished",
        tmp_path / "nothing": "is not a run of scope-wm evaluate",
    }
    for path, message in refused.items():
        assert main(["compare", str(first), str(path)]) == 2
        assert message in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["compare", str(first)])
