import base64
import json
import re
import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import imageio.v3 as iio
import numpy as np
import pytest
from tests.report.browser import DESK, PHONE, needs_chromium, shown

from scope_wm.cli import main
from scope_wm.model.shipped import shipped_model
from scope_wm.report.evaluated import read_evaluations
from scope_wm.report.run_directory import TrainedStage, gaps, trained_stages, world_models
from scope_wm.report.run_pictures import picture_jobs, replay_jobs, sparsest
from scope_wm.report.run_report import ReportSettings, run_summary, write_report
from scope_wm.types import UsageError

RESULTS = Path(__file__).parents[2] / "docs" / "results"
SIMULATED = RESULTS / "simulator" / "wall"
PICTURES = [
    "Learning curves",
    "What the selector looks at",
    "How wrong the background is",
    "What the models imagine",
    "Is the cost lower nearer to the goal?",
    "Problems of wall, planned once more",
]


@pytest.fixture(scope="module")
def written(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([tiny_run, SIMULATED], tmp_path_factory.mktemp("report"))


def tables_of(page: Path) -> str:
    return page.with_suffix(".md").read_text()


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


def media(page: str) -> list[tuple[str, bytes]]:
    """Return the pictures and videos that a page holds, with their kinds."""
    found = re.findall(r'src="data:([a-z0-9/+]+);base64,([^"]*)"', page)
    return [(kind, base64.b64decode(content)) for kind, content in found]


def test_every_training_is_told_with_its_own_figures(tiny_run: Path, written: Path) -> None:
    report = tables_of(written)
    for name, k, samples, steps in (
        ("teacher", "196", "96", "12"),
        ("sparse-k98", "98", "48", "6"),
        ("sparse-k32", "32", "48", "6"),
    ):
        figures = json.loads((tiny_run / name / "config.json").read_text())["made"]["figures"]
        made, judged = cells(report, name)
        assert made[1:3] == [samples, steps]
        errors = [
            figures.get(f"{error}_of_copy") for error in ("one_step", "rollout", "background", "oracle")
        ]
        assert judged == [k, *("" if error is None else f"{error:.3f}" for error in errors)]
    figures = json.loads((tiny_run / "selector" / "config.json").read_text())["made"]["figures"]
    assert f"{figures['recall_32']:.3f} of the teacher's top 32 (chance: 0.163)" in report
    assert "- selector, in windows of training episodes that it was not distilled from: KL " in report
    figures = json.loads((tiny_run / "decoder" / "config.json").read_text())["made"]["figures"]
    assert f"- decoder: PSNR {figures['PSNR']:.1f} dB" in report


def test_stages_come_in_the_order_of_the_pipeline_and_large_k_first(tiny_run: Path) -> None:
    assert list(trained_stages(tiny_run)) == ["teacher", "selector", "sparse-k98", "sparse-k32", "decoder"]


def test_data_and_tokens_are_counted(written: Path) -> None:
    ((size, *_),) = cells(tables_of(written), "data")
    assert size == "10 episodes, 300 frames"
    ((size, *_),) = cells(tables_of(written), "tokens")
    assert size == "940.8 kB"  # 300 x 196 x 8 x 2 bytes


def test_evaluations_of_all_runs_are_told_with_their_intervals(tiny_run: Path, written: Path) -> None:
    summary = json.loads((tiny_run / "evaluate" / "sparse-k32-cem" / "summary.json").read_text())
    assert summary["success"]["solved"] == 0
    ((task, model, *_, made),) = cells(tables_of(written), "sparse-k32-cem")
    assert (task, model) == ("wall", "K = 32")
    one = read_evaluations([tiny_run])[0]
    with_what = ", ".join([one.preset, "machine 1", *one.deviations()])
    assert f"- Made {made}: {with_what}." in tables_of(written)
    assert "0.0 % (0.0 to 65.8 %), 0 of 2" in tables_of(written)  # Wilson: z^2 / (2 + z^2)
    ((task, model, *_),) = cells(tables_of(written), "wall")
    assert (task, model) == ("wall", "simulator")
    assert "- The model is the simulator" in tables_of(written)


def test_the_papers_tables_are_there_and_not_taken_for_ours(written: Path) -> None:
    for text in (written.read_text(), tables_of(written)):
        assert "They are not the paper's benchmark" in text
        assert text.count("not run") > 30
        assert "Time and memory on three tasks" in text
        assert "Token budget, Push-T" not in text  # a run of Wall


def test_the_page_shows_every_picture_and_stays_small(written: Path) -> None:
    page = written.read_text()
    assert re.findall(r"<h3[^>]*>([^<]*)</h3>", page)[-6:] == PICTURES
    found = media(page)
    kinds = [kind for kind, _ in found]
    # Two planners of one model; six pictures, the bank is the last; a problem that was not solved.
    assert kinds == ["image/svg+xml", *6 * ["image/png"], "video/mp4"]
    for kind, content in found[1:]:
        picture = iio.imread(content, plugin="pyav", index=0) if kind == "video/mp4" else iio.imread(content)
        assert np.std(picture) > 10
    assert written.stat().st_size < 10_000_000
    assert {path.name for path in written.parent.iterdir()} == {"report.html", "report.md", "plots"}
    assert "data:" not in tables_of(written)
    assert [path.read_bytes() for path in (written.parent / "plots").iterdir()] == [found[0][1]]


def test_a_video_is_told_by_its_end(written: Path) -> None:
    page = written.read_text()
    assert "<figcaption>K = 32, eb-cem, instance 0: not solved after 2 steps.</figcaption>" in page


def test_a_store_that_lacks_episodes_is_not_finished(tiny_run: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_run / "data", tmp_path / "data")
    assert "`data` is not finished." not in gaps(tmp_path)
    min((tmp_path / "data").glob("shard-*.h5")).unlink()
    assert "`data` is not finished." in gaps(tmp_path)


def test_what_is_not_there_or_not_finished_is_said(tiny_run: Path, tmp_path: Path) -> None:
    run = part_of(tiny_run, tmp_path, "data", "tokens", "teacher")
    (run / "selector").mkdir()
    (run / "selector" / "unfinished.json").write_text("{}")
    page = write_report([run], tmp_path / "out")
    report = tables_of(page)
    assert "- `selector` is not finished.\n" in report
    assert "`data` is not finished" not in report
    for name in ("sparse-*", "evaluate/*"):
        assert f"- `{name}` is not there.\n" in report
    for optional in ("refined-", "decoder"):
        assert optional not in report
    assert "`teacher`" not in report
    assert "The paper" not in report  # nothing was evaluated
    assert re.findall(r"<h3[^>]*>([^<]*)</h3>", page.read_text())[-2:] == [
        "Learning curves",
        "Is the cost lower nearer to the goal?",
    ]


def test_a_run_without_any_training_has_a_report(tiny_run: Path, tmp_path: Path) -> None:
    page = write_report([part_of(tiny_run, tmp_path, "data")], tmp_path / "out")
    assert "## Run run: wall\n" in tables_of(page)
    assert "`teacher` is not there" in tables_of(page)
    assert "`tokens`" not in tables_of(page)  # they may be made on the fly
    assert media(page.read_text()) == []


def test_pictures_are_drawn_without_kept_tokens(tiny_run: Path, tmp_path: Path, written: Path) -> None:
    run = part_of(tiny_run, tmp_path, "data", "teacher", "selector")
    _, live, _ = media(write_report([run], tmp_path / "out").read_text())
    assert live == media(written.read_text())[2]


def test_a_summary_has_the_run_alone(tiny_run: Path) -> None:
    summary = run_summary(tiny_run)
    assert cells(summary, "teacher")
    assert cells(summary, "sparse-k32-eb-cem")
    assert "DINO-WM" not in summary


def test_the_command_writes_where_it_says(
    tiny_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, run = tmp_path / "page", part_of(tiny_run, tmp_path, "data", "selector")
    assert main(["report", str(SIMULATED), str(run), "--out", str(out), "--videos", "0"]) == 0
    assert capsys.readouterr().out == f"{out / 'report.html'}\n"
    assert main(["report", str(run)]) == 0
    assert capsys.readouterr().out == f"{run / 'report' / 'report.html'}\n"


def test_problems_are_planned_again_only_if_videos_are_asked_for(tiny_run: Path) -> None:
    trained, found = trained_stages(tiny_run), read_evaluations([tiny_run])
    assert [job.title for job in picture_jobs(tiny_run, trained, found, 1)] == PICTURES
    assert [job.title for job in picture_jobs(tiny_run, trained, found, 0)] == PICTURES[:-1]
    assert [job.title for job in picture_jobs(tiny_run, trained, [], 1)] == PICTURES[:-1]


def test_problems_of_shipped_models_are_planned_again_task_by_task() -> None:
    names = ("wall/dense-cem", "wall/faster-eb-cem", "push_t/faster-eb-cem")
    found = read_evaluations([SIMULATED, *(RESULTS / "lite" / name for name in names)])
    assert [one.directory for one in found] == [
        None,
        *(shipped_model(name) for name in ("wall/dense", "wall/faster", "push_t/faster")),
    ]
    jobs = replay_jobs(found, 2)
    assert [job.title for job in jobs] == [
        "Problems of wall, planned once more",
        "Problems of push_t, planned once more",
    ]
    shown = [cast("partial[object]", job.draw).args for job in jobs]
    assert shown == [(found[2], 2, None), (found[3], 2, None)]
    assert replay_jobs(found, 0) == []
    assert replay_jobs(found[:1], 2) == []


def test_the_background_is_shown_of_the_sparsest_model_like_the_papers(tiny_run: Path) -> None:
    trained = world_models(trained_stages(tiny_run))
    assert sparsest(trained) == "sparse-k32"
    assert sparsest(trained | {"sparse-k32": changed(trained["sparse-k32"], "background", "copy")}) == (
        "sparse-k98"
    )
    assert sparsest({"teacher": trained["teacher"]}) is None


def test_what_was_trained_further_is_shown_as_it_is_now(tiny_run: Path) -> None:
    trained = trained_stages(tiny_run)
    source = trained["sparse-k32"]
    for weights in ("others", source.header["weights"]):  # the best may be those that it began with
        made = source.made | {"inputs": {"model": source.header["weights"]}}
        header = source.header | {"weights": weights, "made": made}
        further = replace(source, name="refined-k32", header=header)
        models = world_models(trained | {"refined-k32": further})
        assert list(models) == ["teacher", "sparse-k98", "refined-k32"]
        assert sparsest(models) == "refined-k32"


@pytest.mark.parametrize(("part", "kind"), [("selector", "random"), ("background", "ignored")])
def test_a_model_that_draws_anew_or_ignores_the_background_has_no_map_of_it(
    tiny_run: Path, part: str, kind: str
) -> None:
    sparse = changed(trained_stages(tiny_run)["sparse-k32"], part, kind)
    assert sparsest({"sparse-k32": sparse}) is None


def test_a_model_that_ignores_the_background_is_not_asked_for_frames(tiny_run: Path, tmp_path: Path) -> None:
    run = part_of(tiny_run, tmp_path, "data", "tokens", "teacher", "decoder")
    found = trained_stages(run)
    expected = {job.title: job.draw() for job in picture_jobs(run, found, [], 0)}
    sparse = trained_stages(tiny_run)["sparse-k32"]  # which is not there to be loaded
    ignoring = changed(changed(sparse, "selector", "random"), "background", "ignored")
    jobs = picture_jobs(run, found | {"sparse-k32": ignoring}, [], 0)
    assert [job.title for job in jobs] == list(expected)
    assert jobs[1].draw() == expected["What the models imagine"]


def changed(stage: TrainedStage, part: str, kind: str) -> TrainedStage:
    """Return a stage whose model has another selector or background."""
    model = stage.header["model"]
    return replace(stage, header=stage.header | {"model": model | {part: model[part] | {"kind": kind}}})


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(SIMULATED), str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert f"or that of an evaluation, got {tmp_path}\n" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
    with pytest.raises(UsageError, match="expected the directory of at least one run"):
        ReportSettings(runs=())
    with pytest.raises(UsageError, match="expected --videos of at least 0, got -1"):
        ReportSettings(runs=(SIMULATED,), videos=-1)


def test_an_unfinished_evaluation_is_refused(tmp_path: Path) -> None:
    shutil.copytree(SIMULATED, tmp_path / "run")
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(UsageError, match="is not finished"):
        write_report([tmp_path / "run"], tmp_path / "out")


@needs_chromium
@pytest.mark.parametrize(("width", "dark"), [(PHONE, True), (DESK, False)])
def test_a_browser_loads_all_of_it_without_a_complaint(
    written: Path, tmp_path: Path, width: int, dark: bool
) -> None:
    seen = {"broken": 0, "wide": 0, "width": width, "dark": dark, "images": 7, "videos": 1, "complaints": []}
    assert shown(written, tmp_path, width, dark=dark) == seen
