from collections.abc import Callable
from dataclasses import replace

from scope_wm.report.evaluated import Evaluated
from scope_wm.report.ours import COLUMNS, Ours, evaluations_section, ours_of
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
        "selection": "distilled",
        "background": "foreground-delta",
        "planner": "eb-cem",
        "samples": "300/100",
        "result": "88.0 % (76.2 to 94.4 %), 44 of 50",
        "p, against dense": "0.031",  # six that only the dense one solves: 2 / 2^6
        "steps to success": "2.00",
        "plan time": "2.0 s",
        "of a step": "1.00 s",
        "peak memory": "64 MiB",
        "made with": "lite, machine 1",
    }


def test_the_dense_model_is_not_compared_with_itself(evaluated: Make) -> None:
    row = cells(dense(evaluated))
    assert (row["model"], row["selection"], row["p, against dense"]) == ("dense", "", "")


def test_times_are_compared_on_one_machine_only(evaluated: Make) -> None:
    one, alike, other = evaluated(), dense(evaluated), dense(evaluated, cores=8)
    assert Ours(found=[one, alike]).faster(one) == "5.00x"
    assert Ours(found=[one, other]).faster(one) == "-"
    assert Ours(found=[one]).faster(one) == "-"


def test_a_dense_model_of_other_sizes_is_no_yardstick(evaluated: Make) -> None:
    one, other = evaluated(), dense(evaluated)
    assert other.header is not None
    other.header["model"]["history"] = 2
    assert Ours(found=[one, other]).dense_of(one) is None


def test_memory_is_relative_to_the_dense_models(evaluated: Make) -> None:
    one = evaluated(memory=2**20)
    assert Ours(found=[one, dense(evaluated, memory=8 * 2**20)]).memory_share(one) == "12 %"
    assert Ours(found=[one, dense(evaluated, memory=None)]).memory_share(one) == "-"


def test_machines_are_numbered_and_named_once(evaluated: Make) -> None:
    found = [evaluated(), evaluated(planner="cem"), evaluated("wall", cores=8)]
    section = evaluations_section(Ours(found=found))
    table, notes = section.blocks
    assert isinstance(table, Table)
    assert isinstance(notes, Notes)
    assert [row[-1] for row in table.rows] == ["lite, machine 1", "lite, machine 1", "lite, machine 2"]
    machines = [line for line in notes.lines if line.startswith("Machine ")]
    assert len(machines) == 2
    assert " 8 cores, cpu, " in machines[1]
    assert machines[1].endswith(", 1 worker.")


def test_problems_whose_block_must_move_have_a_row_of_their_own(evaluated: Make) -> None:
    one = evaluated(solved=44)
    records = {i: replace(r, block_must_move=i >= 40) for i, r in one.run.records.items()}
    table, _ = evaluations_section(Ours(found=[replace(one, run=replace(one.run, records=records))])).blocks
    assert isinstance(table, Table)
    row = dict(zip(COLUMNS, table.rows[1], strict=True))
    assert row["evaluation"] == "k32-eb-cem, block must move"
    assert row["result"] == "40.0 % (16.8 to 68.7 %), 4 of 10"


def test_evaluations_come_in_the_order_of_the_tasks(evaluated: Make) -> None:
    found = [evaluated(task, count=10, solved=5) for task in ("rope", "push_t", "point_maze")]
    assert [one.task for one in ours_of(found).found] == ["point_maze", "push_t", "rope"]
