import json
import shutil
from dataclasses import replace
from pathlib import Path

import imageio.v3 as iio
import pytest

from scope_wm.cli import main
from scope_wm.evaluate.run import read_run
from scope_wm.presets import PRESETS
from scope_wm.records import to_json
from scope_wm.report.run_directory import TrainedStage, trained_stages
from scope_wm.report.run_report import evaluations_section, preset_of, write_report
from scope_wm.types import UsageError

PICTURES = ("curves.png", "selector-map.png", "imagined.png")


@pytest.fixture(scope="module")
def written(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(tiny_run, tmp_path_factory.mktemp("report"))


def part_of(run: Path, folder: Path, *stages: str) -> Path:
    """Return a run that has only some stages of another."""
    part = folder / "run"
    part.mkdir()
    for stage in stages:
        (part / stage).symlink_to(run / stage)
    return part


def cells(report: str, name: str) -> list[list[str]]:
    """Return the rows of all tables that begin with a name."""
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in report.splitlines()]
    return [row[1:] for row in rows if row[0] == name]


def test_every_training_is_told_with_its_own_figures(tiny_run: Path, written: Path) -> None:
    report = written.read_text()
    for name, k, samples, steps in (
        ("teacher", "196", "96", "12"),
        ("sparse-k98", "98", "48", "6"),
        ("sparse-k32", "32", "48", "6"),
    ):
        figures = json.loads((tiny_run / name / "config.json").read_text())["made"]["figures"]
        made, judged = cells(report, name)
        assert made[1:3] == [samples, steps]
        errors = [figures.get(f"{error}_of_copy") for error in ("one_step", "rollout", "background")]
        assert judged == [k, *("" if error is None else f"{error:.3f}" for error in errors)]
    figures = json.loads((tiny_run / "selector" / "config.json").read_text())["made"]["figures"]
    assert f"{figures['recall_32']:.3f} of the teacher's top 32 (chance: 0.163)" in report
    figures = json.loads((tiny_run / "decoder" / "config.json").read_text())["made"]["figures"]
    assert f"- decoder: PSNR {figures['PSNR']:.1f} dB" in report


def test_stages_come_in_the_order_of_the_pipeline_and_large_k_first(tiny_run: Path) -> None:
    assert list(trained_stages(tiny_run)) == ["teacher", "selector", "sparse-k98", "sparse-k32", "decoder"]


def test_data_and_tokens_are_counted(written: Path) -> None:
    ((size, *_),) = cells(written.read_text(), "data")
    assert size == "10 episodes, 300 frames"
    ((size, *_),) = cells(written.read_text(), "tokens")
    assert size == "940.8 kB"  # 300 x 196 x 8 x 2 bytes


def test_an_evaluation_is_told_with_its_interval_and_plan_time(tiny_run: Path, written: Path) -> None:
    summary = json.loads((tiny_run / "evaluate" / "sparse-k32-cem" / "summary.json").read_text())
    ((solved, interval, *_, seconds),) = cells(written.read_text(), "sparse-k32-cem")
    assert summary["success"]["solved"] == 0
    assert (solved, interval) == ("0 of 2", "0.0 to 65.8 %")  # Wilson: z^2 / (2 + z^2)
    assert seconds == f"{summary['mean_plan_seconds']:.2f} s"


def test_evaluations_are_told_with_their_notes_once(tiny_run: Path) -> None:
    run = read_run(tiny_run / "evaluate" / "sparse-k32-cem")
    noted = replace(run, summary=run.summary | {"notes": ["An upper bound."]})
    section = evaluations_section([noted, noted, run])
    assert section.count("- An upper bound.") == 1
    assert len(cells(section, "sparse-k32-cem")) == 3


def test_the_pictures_are_there_and_shown(written: Path) -> None:
    assert {path.name for path in written.parent.iterdir()} == {"report.md", *PICTURES}
    for name in PICTURES:
        assert f"]({name})" in written.read_text()
        assert iio.imread(written.parent / name).std() > 10


def test_a_run_is_not_taken_for_the_papers(written: Path) -> None:
    report = written.read_text()
    assert report.startswith("# wall, settings of its own\n")
    assert "cannot be held against the paper's" in report
    assert " cores, cpu, " in report


def test_a_preset_is_known_by_its_settings(tiny_run: Path) -> None:
    teacher = trained_stages(tiny_run)["teacher"]
    lite = PRESETS["lite"]("wall")
    settings = {"model": to_json(lite.model), "fit": to_json(lite.teacher), "select_by": "rollout"}
    made = TrainedStage(
        name="teacher", header=teacher.header | {"made": {"settings": settings}}, metrics=[], parameters=0
    )
    assert preset_of(made) == "lite"
    settings["fit"]["batch"] += 1
    assert preset_of(made) is None


def test_what_is_not_there_or_not_finished_is_said(tiny_run: Path, tmp_path: Path) -> None:
    run = part_of(tiny_run, tmp_path, "data", "tokens", "teacher")
    (run / "selector").mkdir()
    (run / "selector" / "unfinished.json").write_text("{}")
    report = write_report(run, tmp_path / "out").read_text()
    assert "- `selector` is not finished.\n" in report
    for name in ("sparse-*", "decoder", "evaluate/*"):
        assert f"- `{name}` is not there.\n" in report + "\n"
    assert "`teacher`" not in report
    assert {path.name for path in (tmp_path / "out").iterdir()} == {"report.md", "curves.png"}


def test_a_run_without_any_training_has_a_report(tiny_run: Path, tmp_path: Path) -> None:
    report = write_report(part_of(tiny_run, tmp_path, "data"), tmp_path / "out").read_text()
    assert report.startswith("# wall, settings of its own\n")
    assert "`tokens` is not there" in report
    assert "![" not in report


def test_pictures_are_drawn_without_kept_tokens(tiny_run: Path, tmp_path: Path, written: Path) -> None:
    run = part_of(tiny_run, tmp_path, "data", "teacher", "selector")
    write_report(run, tmp_path / "out")
    live, cached = (folder / "selector-map.png" for folder in (tmp_path / "out", written.parent))
    assert live.read_bytes() == cached.read_bytes()


def test_the_command_writes_into_the_run(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = part_of(tiny_run, tmp_path, "data", "selector")
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report' / 'report.md'}\n"
    shutil.rmtree(run / "report")
    assert main(["report", str(tmp_path)]) == 2
    assert "expected the directory of a run" in capsys.readouterr().err


def test_a_directory_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="expected the directory of a run"):
        write_report(tmp_path / "nothing", tmp_path / "out")
    assert not (tmp_path / "out").exists()
