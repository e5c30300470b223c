from collections.abc import Callable
from dataclasses import replace

import pytest

from scope_wm.planning.load import SIMULATOR
from scope_wm.report.evaluated import Evaluated
from scope_wm.report.ours import COLUMNS, Ours, evaluations_section, model_text, ours_of
from scope_wm.report.page import Notes, Table

Make = Callable[..., Evaluated]


def cells(one: Evaluated, *others: Evaluated) -> dict[str, str]:
    """Return the row of the first of some evaluations, by column."""
    table, _ = evaluations_section(Ours(found=[one, *others])).blocks
    assert isinstance(table, Table)
    return dict(zip(COLUMNS, table.rows[0], strict=True))


def dense(evaluated: Make, **other: object) -> Evaluated:
    return evaluated(**({"k": 196, "planner": "cem", "solved": 50, "seconds": 10.0} | other))


def test_a_row_tells_what_was_evaluated_and_how_it_went(evaluated: Make) -> None:
    assert cells(evaluated(solved=44), dense(evaluated)) == {
        "evaluation": "k32-eb-cem",
        "task": "push_t",
        "model": "K = 32",
        "planner": "eb-cem 300/100",
        "result": "88.0 % (76.2 to 94.4 %), 44 of 50",
        "first 50 or 10": "",
        "block must move": "",
        "against dense": "p = 0.031",  # six that only the dense one solves: 2 / 2^6
        "steps to success": "2.00",
        "plan time": "2.0 s",
        "of a step": "1.00 s",
        "peak memory": "64 MiB",
        "made": "1",
    }


def test_times_of_the_simulator_are_not_told(evaluated: Make) -> None:
    one = evaluated()
    simulated = replace(one.run, config=one.run.config | {"model_digest": SIMULATOR})
    reference = replace(one, run=simulated, header=None)
    row = cells(reference)
    assert (row["model"], row["plan time"], row["of a step"]) == (SIMULATOR, "-", "-")


def test_true_dynamics_are_not_taken_for_the_model_whose_cost_they_have(evaluated: Make) -> None:
    plain, played = dense(evaluated), dense(evaluated)
    played.run.config["settings"]["true_dynamics"] = True
    assert Ours(found=[played, plain]).of(plain.setup) == [plain]
    row = cells(played, plain)
    assert (row["model"], row["plan time"], row["of a step"]) == ("true dynamics, learned cost", "-", "-")
    assert row["against dense"] == ""


def test_the_dense_model_is_not_compared_with_itself(evaluated: Make) -> None:
    row = cells(dense(evaluated))
    assert (row["model"], row["against dense"]) == ("dense", "")


def test_times_are_compared_on_one_machine_only(evaluated: Make) -> None:
    one, alike, other = evaluated(), dense(evaluated), dense(evaluated, cores=8)
    assert Ours(found=[one, alike]).faster(one) == "5.00x"
    assert Ours(found=[one, other]).faster(one) == "-"
    assert Ours(found=[one]).faster(one) == "-"
    assert Ours(found=[one, other, alike]).faster(one) == "5.00x"  # the first is not the better yardstick


def test_times_are_those_of_problems_that_both_have(evaluated: Make) -> None:
    one, longer = evaluated(), dense(evaluated, count=100)
    for instance, record in longer.run.records.items():
        longer.run.records[instance] = replace(record, plan_seconds=10.0 if instance < 50 else 90.0)
    assert Ours(found=[one, longer]).faster(one) == "5.00x"


def test_a_dense_model_of_other_sizes_is_no_yardstick(evaluated: Make) -> None:
    one, other = evaluated(), dense(evaluated)
    assert one.header is not None
    assert other.header is not None
    other.header["model"]["history"] = 2
    assert Ours(found=[one, other]).dense_of(one) is None
    one.header["model"]["history"] = 3  # both are no preset's, and not the same
    assert one.preset == other.preset
    assert Ours(found=[one, other]).dense_of(one) is None
    one.header["model"]["history"] = 2
    assert Ours(found=[one, other]).dense_of(one) is other


def test_refined_models_are_compared_with_refined_ones(
    evaluated: Make, refined: Callable[[Evaluated], Evaluated]
) -> None:
    one, plain = evaluated(), dense(evaluated)
    further, yardstick = refined(one), refined(plain)
    ours = Ours(found=[one, plain, further, yardstick])
    assert ours.dense_of(one) is plain
    assert ours.dense_of(further) is yardstick
    assert Ours(found=[further, plain]).dense_of(further) is None
    assert (ours.made_with(one), ours.made_with(further)) == ("lite, machine 1", "lite, refined, machine 1")


def test_training_in_bfloat16_is_told(evaluated: Make, refined: Callable[[Evaluated], Evaluated]) -> None:
    one = evaluated()
    assert one.header is not None
    one.header["made"] |= {"precision": "float32", "resumed": [{"precision": "bfloat16"}]}
    assert Ours(found=[one]).made_with(one) == "lite, trained in float32 and bfloat16, machine 1"
    further = refined(evaluated())
    assert further.header is not None
    assert Ours(found=[further]).made_with(further) == "lite, refined, machine 1"
    further.header["made"] |= {"precision": "bfloat16"}
    assert (
        Ours(found=[further]).made_with(further)
        == "lite, refined, trained in float32 and bfloat16, machine 1"
    )
    further.header["made"]["before"] |= {"precision": "bfloat16"}
    assert Ours(found=[further]).made_with(further) == "lite, refined, trained in bfloat16, machine 1"


@pytest.mark.parametrize(
    "unlike", [{"max_steps": 1}, {"horizon": 2}, {"max_seconds": 1.0}, {"iterations": 5}]
)
def test_a_dense_model_on_other_terms_is_no_yardstick(evaluated: Make, unlike: dict[str, object]) -> None:
    usual, unusual = dense(evaluated), dense(evaluated, **unlike)
    for one, yardstick, other in (
        (evaluated(), usual, unusual),
        (evaluated(**unlike), unusual, usual),
    ):
        assert Ours(found=[one, other]).dense_of(one) is None
        assert Ours(found=[one, other, yardstick]).dense_of(one) is yardstick


def test_what_is_unusual_of_the_sparse_model_alone_is_what_is_compared(evaluated: Make) -> None:
    one, plain, rounded = evaluated(), dense(evaluated), dense(evaluated)
    rounded.run.config["settings"]["precision"] = "int8"
    assert Ours(found=[one, rounded]).dense_of(one) is None
    one.run.config["settings"]["precision"] = "int8"
    assert Ours(found=[one, plain]).dense_of(one) is plain
    assert Ours(found=[one, plain, rounded]).dense_of(one) is rounded


def test_memory_is_relative_to_the_dense_models(evaluated: Make) -> None:
    one = evaluated(memory=2**20)
    assert Ours(found=[one, dense(evaluated, memory=8 * 2**20)]).memory_share(one) == "12 %"
    assert Ours(found=[one, dense(evaluated, memory=None)]).memory_share(one) == "-"
    assert Ours(found=[one, dense(evaluated, cores=8)]).memory_share(one) == "-"
    limited = evaluated(chunk=10)
    assert Ours(found=[limited, dense(evaluated)]).memory_share(limited) == "-"
    assert Ours(found=[limited, dense(evaluated, chunk=10)]).memory_share(limited) == "100 %"


def test_sizes_that_are_no_presets_are_numbered_if_there_are_several(evaluated: Make) -> None:
    found = [evaluated() for _ in range(3)]
    for one, history in zip(found, (2, 3, 2), strict=True):
        assert one.header is not None
        one.header["model"]["history"] = history
    told = [[Ours(found=some).preset_text(one) for one in some] for some in (found, found[:1])]
    assert told == [["own sizes 1", "own sizes 2", "own sizes 1"], ["own sizes"]]


def test_machines_are_numbered_and_named_once(evaluated: Make) -> None:
    found = [evaluated(), evaluated(planner="cem"), evaluated("wall", cores=8)]
    section = evaluations_section(Ours(found=found))
    table, notes = section.blocks
    assert isinstance(table, Table)
    assert isinstance(notes, Notes)
    assert [row[-1] for row in table.rows] == ["1", "1", "2"]
    assert list(notes.lines[:2]) == ["Made 1: lite, machine 1.", "Made 2: lite, machine 2."]
    machines = [line for line in notes.lines if line.startswith("Machine ")]
    assert len(machines) == 2
    assert " 8 cores, cpu, " in machines[1]
    assert machines[1].endswith(", 1 worker.")


def test_problems_whose_block_must_move_are_told_apart(evaluated: Make) -> None:
    one = evaluated(solved=44)
    records = {i: replace(r, block_must_move=i >= 40) for i, r in one.run.records.items()}
    table, _ = evaluations_section(Ours(found=[replace(one, run=replace(one.run, records=records))])).blocks
    assert isinstance(table, Table)
    row = dict(zip(COLUMNS, table.rows[0], strict=True))
    assert row["result"] == "88.0 % (76.2 to 94.4 %), 44 of 50"
    assert row["block must move"] == "40.0 % (16.8 to 68.7 %), 4 of 10"


def test_instances_of_the_papers_protocol_are_told_apart(evaluated: Make) -> None:
    row = cells(evaluated(solved=90, count=100))
    assert row["result"].endswith("90 of 100")
    assert row["first 50 or 10"].endswith("50 of 50")


def test_a_model_is_told_by_what_differs_from_the_papers(evaluated: Make) -> None:
    assert model_text(evaluated()) == "K = 32"
    other = evaluated(k=98)
    assert other.header is not None
    other.header["model"]["selector"]["kind"] = "random"
    other.header["model"]["background"]["kind"] = "copy"
    other.run.config["settings"]["k"] = 32
    assert model_text(other) == "K = 32, trained with 98, selection random, background copy"


def test_evaluations_come_in_the_order_of_the_tasks(evaluated: Make) -> None:
    found = [evaluated(task, count=10, solved=5) for task in ("rope", "push_t", "point_maze")]
    assert [one.task for one in ours_of(found).found] == ["point_maze", "push_t", "rope"]
