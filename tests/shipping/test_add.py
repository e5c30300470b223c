import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors
import torch

from scope_wm.cli import main
from scope_wm.data.token_cache import open_tokens
from scope_wm.evaluate.models import model_digest
from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.planning.load import ModelSettings
from scope_wm.report.evaluated import read_evaluations
from scope_wm.report.run_report import ReportSettings, report
from scope_wm.shipping.add import AddSettings, add
from scope_wm.shipping.card import NOT_REFINED, card, planner_text, result_row
from scope_wm.shipping.listing import result_text
from scope_wm.shipping.record import read_record
from scope_wm.shipping.results import changes
from scope_wm.train.dynamics import held_out_figures, open_experience
from scope_wm.types import UsageError

STAGES = {"dense": "refined-dense", "fast": "refined-k98", "faster": "refined-k32"}
BEFORE = ("teacher", "selector", "sparse-k98", "sparse-k32")
EVALUATION = Path("evaluate") / "refined-k32-cem"


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


@pytest.fixture
def mine(run: Path, tmp_path: Path) -> Path:
    """A copy of the run, to be changed."""
    copy = tmp_path / "run"
    copy.mkdir()
    (copy / "data").symlink_to(run / "data")
    for stage in (*BEFORE, *STAGES.values(), "evaluate"):
        shutil.copytree(run / stage, copy / stage)
    return copy


@pytest.mark.parametrize(("name", "kept"), [("dense", 196), ("fast", 98), ("faster", 32)])
def test_a_model_is_added_in_half_precision_and_loaded_in_single(added: Path, name: str, kept: int) -> None:
    directory = added / "wall" / name
    files = sorted(path.name for path in directory.iterdir())
    assert files == ["README.md", "config.json", "model.safetensors", "record.json"]
    with safetensors.safe_open(directory / "model.safetensors", "pt") as weights:
        assert {weights.get_tensor(key).dtype for key in weights.keys()} == {torch.float16}  # noqa: SIM118
    model = TrainedModel.from_pretrained(directory)
    assert model.config.selector.k == kept
    assert {value.dtype for value in model.world_model.state_dict().values()} == {torch.float32}


@pytest.mark.parametrize("name", STAGES)
def test_rounding_changes_the_error_on_held_out_windows_by_less_than_a_hundredth(
    run: Path, added: Path, name: str
) -> None:
    before, after = (TrainedModel.from_pretrained(p) for p in (run / STAGES[name], added / "wall" / name))
    config = before.config
    tokens = open_tokens(str(run / "tokens"), run / "data", config.encoder.config, "cpu")
    windows = open_experience(
        run / "data", tokens, history=config.history, frameskip=config.frameskip
    ).held_out
    exact, rounded = (held_out_figures(model.world_model, windows) for model in (before, after))
    assert set(exact) >= {"one_step_of_copy", "rollout_of_copy"}
    for figure, value in exact.items():
        assert rounded[figure] == pytest.approx(value, rel=0.01), figure
    assert rounded != exact


def test_the_card_tells_what_the_run_has_recorded(run: Path, added: Path) -> None:
    text = (added / "wall" / "faster" / "README.md").read_text()
    for stage in ("sparse-k32", "refined-k32"):
        figures = json.loads((run / stage / "config.json").read_text())["made"]["figures"]
        names = ("one_step", "rollout", "last", "background")
        errors = " | ".join(f"{figures[f'{name}_of_copy']:.3f}" for name in names)
        assert f"\n| {stage} | {errors} |\n" in text
    selector = json.loads((run / "selector" / "config.json").read_text())["made"]["figures"]
    assert f"{selector['recall_32']:.3f} of the 32 tokens" in text
    assert f"chance would find {32 / 196:.3f}" in text
    summary = json.loads((run / EVALUATION / "summary.json").read_text())
    low, high = (100 * end for end in summary["success"]["interval"])
    (result,) = read_record(added / "wall" / "faster").results
    (row,) = (line for line in text.splitlines() if line.startswith(f"| {planner_text(result)} |"))
    assert f"| float32 | 2 | {summary['success']['solved']} of 2 solved | {low:.1f} to {high:.1f} % |" in row
    assert row.endswith(
        f"| {summary['mean_final_distance']:.3g} | {summary['mean_plan_seconds']:.2f} s | 1 |"
    )
    assert f"Machine 1: {result.machine}." in text
    assert json.loads((run / EVALUATION / "config.json").read_text())["machine"]["processor"] in text
    assert "measured before rounding" in text
    assert "in float32, before rounding" in text
    assert "in these very windows" in text
    assert "but of the training episodes" in text
    assert "4 episodes of `wall` for training and 1 to judge with" in text
    assert "scope-wm collect --task wall --episodes 5 --seed 0" in text
    assert "cannot be compared with the paper's" in text
    assert "trained further on frames that it imagines" in text


def test_a_task_with_a_distance_only_has_the_interval_of_that(added: Path) -> None:
    (result,) = read_record(added / "wall" / "faster").results
    distance = replace(result, solved=None, way_made=0.5, distance_interval=(0.125, 0.25))
    assert result_row(distance, 1)[3:5] == ("50 % of the way", "distance 0.125 to 0.25")


def test_a_model_that_was_not_refined_says_so_if_its_preset_refines(added: Path) -> None:
    header, _ = read_header(added / "wall" / "faster")
    record = read_record(added / "wall" / "faster")
    unrefined = header | {"made": header["made"]["before"]}
    assert NOT_REFINED not in card("wall/faster", header, record)
    assert NOT_REFINED in card("wall/faster", unrefined, replace(record, preset="lite"))
    assert NOT_REFINED not in card("wall/faster", unrefined, replace(record, preset="paper"))


def test_the_record_counts_windows_and_steps_of_every_training(run: Path, added: Path) -> None:
    record = read_record(added / "wall" / "faster")
    stages = ["teacher", "selector", "sparse-k32", "refined-k32"]
    assert [each.stage for each in record.trainings] == stages
    teacher, selector, sparse, refined = record.trainings
    assert (teacher.steps, teacher.samples) == (sparse.steps, sparse.samples) == (20, 320)
    assert teacher.windows == 4 * (50 - 5)  # of episodes of 50 frames, 5 frames apart
    assert refined.windows == 4 * (50 - 15)  # of three actions
    assert selector.windows == 50 - 5
    lines = [json.loads(line) for line in (run / "teacher" / "metrics.jsonl").read_text().splitlines()]
    assert teacher.seconds == pytest.approx(sum(line.get("seconds", 0.0) for line in lines))


def test_evaluations_may_lie_elsewhere(mine: Path, added: Path, tmp_path: Path) -> None:
    (mine / "evaluate").rename(tmp_path / "kept")
    add(AddSettings(run=mine, out=tmp_path / "shipped", evaluations=tmp_path / "kept"))
    (result,) = read_record(tmp_path / "shipped" / "wall" / "faster").results
    assert [result] == read_record(added / "wall" / "faster").results
    with pytest.raises(UsageError, match="expected --evaluations to be a directory"):
        AddSettings(run=mine, evaluations=tmp_path / "none")
    with pytest.raises(UsageError, match="expected directories of evaluations in"):
        AddSettings(run=mine, evaluations=tmp_path)


def test_a_model_without_evaluations_has_none_in_its_card(added: Path) -> None:
    text = (added / "wall" / "dense" / "README.md").read_text()
    assert "It has not been evaluated." in text
    assert "selector" not in text
    assert "predicts all 196 tokens" in text


def test_nothing_that_ships_names_a_path_of_the_machine(run: Path, added: Path) -> None:
    for file in added.rglob("*"):
        if file.suffix in (".json", ".md"):
            assert str(run.parent) not in file.read_text(), file


def test_an_evaluation_of_the_added_weights_is_told_as_such(mine: Path, tmp_path: Path) -> None:
    settings, out = AddSettings(run=mine, out=tmp_path / "out"), tmp_path / "out" / "wall" / "faster"
    add(settings)
    before = (out / "config.json").read_bytes()
    shutil.copytree(mine / EVALUATION, mine / "evaluate" / "faster-cem")
    digest = model_digest(ModelSettings(model=str(out)), "wall")
    edit(mine / "evaluate" / "faster-cem" / "config.json", lambda old: old.update(model_digest=digest))
    add(settings)
    assert [result.weights for result in read_record(out).results] == ["float16", "float32"]
    assert (out / "config.json").read_bytes() == before
    assert read_record(out.parent / "fast").results == []


def test_of_a_long_evaluation_the_instances_of_the_protocol_are_told_too(mine: Path, tmp_path: Path) -> None:
    evaluation = mine / EVALUATION
    line = json.loads((evaluation / "instances.jsonl").read_text().splitlines()[0])
    records = [line | {"instance": i, "success": i in (0, 1, 50)} for i in range(51)]
    (evaluation / "instances.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    edit(evaluation / "summary.json", lambda old: old.update(instances=51))
    edit(evaluation / "config.json", lambda old: old["settings"].update(instances=51))
    add(AddSettings(run=mine, out=tmp_path / "out"))
    results = read_record(tmp_path / "out" / "wall" / "faster").results
    assert [(each.solved, each.instances, each.all_of) for each in results] == [(3, 51, 51), (2, 50, 51)]
    rows = [
        [cell.strip() for cell in line.split("|")[1:]]
        for line in (tmp_path / "out" / "wall" / "faster" / "README.md").read_text().splitlines()
    ]
    assert [cells[2:4] for cells in rows if cells[1:2] == ["float32"]] == [
        ["51", "3 of 51 solved"],
        ["the first 50 of 51", "2 of 50 solved"],
    ]
    assert [result_text(each).split(" solved")[0] for each in results] == ["3 of 51", "2 of the first 50"]


def test_machines_are_told_apart_row_by_row(added: Path) -> None:
    header, record = read_header(added / "wall" / "faster")[0], read_record(added / "wall" / "faster")
    (one,) = record.results
    text = card("wall/faster", header, replace(record, results=[one, replace(one, machine="Another")]))
    rows = [line for line in text.splitlines() if line.split(" | ")[1:2] == ["float32"]]
    assert [row.split("|")[-2].strip() for row in rows] == ["1", "2"]
    assert f"Machine 1: {one.machine}. Machine 2: Another." in text


def test_what_the_simulator_played_is_not_told_as_the_models_result(mine: Path, tmp_path: Path) -> None:
    edit(mine / EVALUATION / "config.json", lambda config: config["settings"].update(true_dynamics=True))
    add(AddSettings(run=mine, out=tmp_path / "shipped"))
    assert read_record(tmp_path / "shipped" / "wall" / "faster").results == []


@pytest.mark.parametrize(("asked", "told"), [(4, ["samples 4"]), (100, []), (None, [])])
def test_candidates_are_told_if_they_are_not_the_usual_number(
    run: Path, asked: int | None, told: list[str]
) -> None:
    (one,) = read_evaluations([run])
    one.run.config["settings"]["samples"] = asked
    assert changes(one) == told
    one.run.config["settings"]["k"] = 32  # as in training
    assert changes(one) == told
    one.run.config["settings"]["k"] = 98
    assert changes(one) == [*told, "K = 98"]
    one.run.config["settings"]["first_samples"] = 300
    assert changes(one) == [*told, "first samples 300", "K = 98"]


def test_adding_again_changes_nothing_and_leaves_nothing_behind(run: Path, tmp_path: Path) -> None:
    contents = []
    for _ in range(2):
        assert main(["models", "add", str(run), "--out", str(tmp_path / "out")]) == 0
        files = sorted((tmp_path / "out").rglob("*"))
        contents.append({file: file.read_bytes() for file in files if file.is_file()})
    assert contents[0] == contents[1]
    assert len(contents[0]) == 12


@pytest.mark.parametrize(
    ("stage", "change", "message"),
    [
        ("refined-dense", lambda old: old["model"].update(task="puck:Puck"), "one of puck:Puck"),
        ("refined-k32", lambda old: old["model"]["encoder"]["config"].update(source="/eye"), "is on /eye"),
        ("refined-k98", lambda old: old["model"]["selector"].update(k=64), "'distilled', 64"),
        ("refined-k98", lambda old: old["model"]["selector"].update(kind="random"), "'random', 98"),
        ("refined-k98", lambda old: old["model"]["background"].update(kind="copy"), "98, 'copy'"),
        ("selector", lambda old: old.update(weights="0"), "the selector that its sparse-k98 was made from"),
        ("sparse-k32", lambda old: old.update(weights="0"), "sparse-k32 that its refined-k32 was made from"),
    ],
)
def test_what_cannot_ship_is_refused_before_anything_is_written(
    mine: Path, tmp_path: Path, stage: str, change: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit(mine / stage / "config.json", change)
    with pytest.raises(UsageError, match=message):
        add(AddSettings(run=mine, out=tmp_path / "out"))
    assert not (tmp_path / "out").exists()


def test_a_run_that_was_not_refined_ships_as_it_is(mine: Path, tmp_path: Path) -> None:
    for stage in STAGES.values():
        shutil.rmtree(mine / stage)
    add(AddSettings(run=mine, out=tmp_path / "out"))
    for name, stage in (("dense", "teacher"), ("fast", "sparse-k98"), ("faster", "sparse-k32")):
        trainings = read_record(tmp_path / "out" / "wall" / name).trainings
        assert trainings[-1].stage == stage


def test_a_run_can_go_on_from_a_model_that_ships(mine: Path, tmp_path: Path) -> None:
    for stage in ("selector", "sparse-k98", "sparse-k32", *STAGES.values()):
        shutil.rmtree(mine / stage)
    add(AddSettings(run=mine, out=tmp_path / "first"))
    shutil.rmtree(mine / "teacher")
    shutil.copytree(tmp_path / "first" / "wall" / "dense", mine / "teacher")
    add(AddSettings(run=mine, out=tmp_path / "second"))
    first, second = (read_record(tmp_path / out / "wall" / "dense") for out in ("first", "second"))
    assert second.trainings == first.trainings
    assert [one.steps for one in first.trainings] == [20]
    report(ReportSettings(runs=(mine,), out=tmp_path / "report", videos=0))
    assert "Learning curves" not in (tmp_path / "report" / "report.md").read_text()


@pytest.mark.parametrize(("name", "stage"), [("dense", "teacher"), ("faster", "sparse-k32")])
def test_a_refined_model_that_ships_is_not_taken_for_an_earlier_stage(
    mine: Path, tmp_path: Path, name: str, stage: str
) -> None:
    add(AddSettings(run=mine, out=tmp_path / "first"))
    for made in ("refined-dense", "refined-k98", "refined-k32", "sparse-k98", stage):
        shutil.rmtree(mine / made)
    shutil.copytree(tmp_path / "first" / "wall" / name, mine / stage)
    with pytest.raises(UsageError, match=f"expected .*{stage}"):
        add(AddSettings(run=mine, out=tmp_path / "second"))


def test_a_run_that_was_refined_in_part_is_refused(mine: Path, tmp_path: Path) -> None:
    shutil.rmtree(mine / "refined-k98")
    with pytest.raises(UsageError, match="to be refined or none, sparse-k98 is not"):
        add(AddSettings(run=mine, out=tmp_path / "out"))


def test_a_directory_that_is_no_run_is_wrong_usage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["models", "add", str(tmp_path)]) == 2
    assert "expected a run with one of teacher, sparse-k98, sparse-k32" in capsys.readouterr().err
