import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from tests.report.conftest import header

from scope_wm.bench.flops import prediction_gflops
from scope_wm.bench.paper_figures import DENSE, FAST, FASTER, PAPER_FIGURES
from scope_wm.model.architecture import ModelConfig
from scope_wm.records import from_json
from scope_wm.report.evaluated import Evaluated
from scope_wm.report.ours import Ours
from scope_wm.report.page import Section, Table, markdown_page
from scope_wm.report.paper_tables import PAPER, TASK_OF, paper_sections

Make = Callable[..., Evaluated]
Row = tuple[str, ...]


def tables(*found: Evaluated) -> dict[str, list[Row]]:
    """Return the rows of all tables by title."""
    sections = paper_sections(Ours(found=list(found)))
    return {section.title: rows(section) for section in sections[1:]}


def rows(section: Section) -> list[Row]:
    (table,) = [block for block in section.blocks if isinstance(block, Table)]
    return table.rows


def run(cells: Row) -> bool:
    return "not run" not in cells


def test_the_papers_figures_stand_there_as_printed(evaluated: Make) -> None:
    shown = tables(evaluated(k=10))  # which is in none of them
    assert shown["Success against cost, Push-T"] == [
        (
            "DINO-WM (dense)",
            "196",
            "90 %",
            "31.89 G",
            "240.96 s",
            "1.0x",
            "18436 MB",
            "100.0 %",
            "not run",
            *6 * ("",),
        ),
        (
            "Scope-WM (Fast)",
            "98",
            "94 %",
            "15.04 G",
            "93.06 s",
            "2.59x",
            "7088 MB",
            "38.4 %",
            "not run",
            *6 * ("",),
        ),
        (
            "Scope-WM (Faster)",
            "32",
            "88 %",
            "5.27 G",
            "34.56 s",
            "6.97x",
            "3334 MB",
            "18.1 %",
            "not run",
            *6 * ("",),
        ),
    ]
    assert shown["All tasks"][2][:4] == ("DreamerV3", "paper", "100 %", "30 %")
    assert shown["All tasks"][4] == ("Sparse Imagination", "paper", "100 %", "78.3 %", "95 %", "-", "-")
    assert shown["Another K than in training, Push-T"][1][:3] == ("98", "32", "14 %")
    assert shown["Selection and background, Push-T, K = 32"][3][:3] == ("DRS", "copy", "56 %")


def test_tables_about_tasks_that_were_not_evaluated_are_left_out(evaluated: Make) -> None:
    assert list(tables(evaluated("rope"))) == ["All tasks"]
    assert list(tables(evaluated("wall"))) == ["All tasks", "Time and memory on three tasks"]
    puck = evaluated("wall")
    puck.run.config["settings"]["task"] = "puck:Puck"
    assert paper_sections(Ours(found=[puck])) == paper_sections(Ours(found=[])) == []


def test_every_figure_of_the_paper_is_shown(evaluated: Make) -> None:
    page = markdown_page("", "", paper_sections(Ours(found=[evaluated()])))

    def leaves(value: Any) -> list[float]:
        inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        return (
            [value] if isinstance(value, int | float) else [leaf for part in inner for leaf in leaves(part)]
        )

    figures, shown = leaves(PAPER), set(re.findall(r"\d+(?:\.\d+)?", page))
    assert len(figures) > 100
    assert [figure for figure in figures if str(figure) not in shown] == []


def test_the_benchmark_quotes_the_same_figures() -> None:
    methods = {("DINO-WM", 196): (DENSE, "cem"), ("Scope-WM (Faster)", 32): (FASTER, "eb-cem")}
    for line in PAPER["efficiency_rigid"]:
        figure = PAPER_FIGURES[TASK_OF[line["task"]], *methods[line["method"], line["k"]]]
        assert (figure.seconds, figure.megabytes) == (line["plan_s"], line["peak_mb"])
    fast = PAPER["push_t_tradeoff"][1]
    assert PAPER_FIGURES["push_t", FAST, "eb-cem"].seconds == fast["plan_s"]


def test_an_evaluation_stands_beside_its_own_row_in_every_table(evaluated: Make) -> None:
    shown = tables(evaluated(solved=44))
    found = {
        title: [cells for cells in table if any("44 of 50" in cell for cell in cells)]
        for title, table in shown.items()
    }
    assert {title: [cells[:3] for cells in table] for title, table in found.items()} == {
        "Success against cost, Push-T": [("Scope-WM (Faster)", "32", "88 %")],
        "All tasks": [("Scope-WM (Faster)", "ours", "not run")],
        "Without one of the three parts, Push-T, K = 32": [
            ("full", "88 %", "88.0 % (76.2 to 94.4 %), 44 of 50")
        ],
        "Selection and background, Push-T, K = 32": [("DRS", "FDBU", "88 %")],
        "Model and planner, Push-T": [("k32", "EB-CEM", "300/100")],
        "Samples at the first and at later steps, Push-T, K = 32": [("EB-CEM", "300/100", "88 %")],
        "Time and memory on three tasks": [("Push-T", "Scope-WM (Faster)", "88 %")],
        "Another K than in training, Push-T": [("32", "32", "88 %")],
        "Token budget, Push-T": [("32", "88 %", "88.0 % (76.2 to 94.4 %), 44 of 50")],
    }


def test_ours_tells_instances_interval_preset_and_machine(evaluated: Make) -> None:
    dense = evaluated(k=196, planner="cem", seconds=10.0, max_steps=3)
    shown = tables(dense, evaluated(solved=44, max_steps=3))
    *_, ours, time, faster, flops, memory, share, made = shown["Success against cost, Push-T"][2]
    assert ours == "88.0 % (76.2 to 94.4 %), 44 of 50"
    assert (time, faster, memory, share) == ("2.0 s", "5.00x", "64 MiB", "100 %")
    config = from_json(ModelConfig, json.loads(json.dumps(header("push_t", 32)["model"])), "")
    assert flops == f"{prediction_gflops(config):.3g} G"
    assert made == "1"
    assert Ours(found=[dense]).makings == ["lite, machine 1, max steps 3"]


def test_the_dense_model_stands_with_the_planner_that_it_had(evaluated: Make) -> None:
    shown = tables(evaluated(k=196, planner="eb-cem"))
    assert not any(map(run, shown["Success against cost, Push-T"]))
    assert [cells[:3] for cells in shown["Model and planner, Push-T"] if run(cells)] == [
        ("dense", "EB-CEM", "300/100")
    ]


@pytest.mark.parametrize(
    ("part", "kind", "row"),
    [
        ("selector", "random", ("random", "FDBU", "76 %")),
        ("background", "copy", ("DRS", "copy", "56 %")),
        ("background", "cross-attention", ("DRS", "cross-attention", "-")),
        ("selector", "motion", ("motion", "FDBU", "-")),
    ],
)
@pytest.mark.parametrize("further", [False, True])
def test_an_ablation_is_known_by_its_model(
    evaluated: Make,
    refined: Callable[[Evaluated], Evaluated],
    part: str,
    kind: str,
    row: Row,
    further: bool,
) -> None:
    one = refined(evaluated(solved=40)) if further else evaluated(solved=40)
    assert one.header is not None
    one.header["model"][part]["kind"] = kind
    shown = tables(one)
    ((*labels, result, one_step, oracle, background, _),) = filter(
        run, shown["Selection and background, Push-T, K = 32"]
    )
    assert tuple(labels) == row
    assert (one_step, oracle, background) == ("0.432", "0.321", "0.876")
    assert result == "80.0 % (67.0 to 88.8 %), 40 of 50"
    assert not any(map(run, shown["Success against cost, Push-T"]))


def test_sparse_imagination_is_known_by_its_ignored_background(evaluated: Make) -> None:
    one = evaluated("wall", k=98, planner="cem", solved=40)
    assert one.header is not None
    one.header["model"]["selector"]["kind"] = "random"
    one.header["model"]["background"]["kind"] = "ignored"
    shown = tables(one)["All tasks"]
    model = "K = 98, selection random, background ignored"
    assert shown[5] == (
        "Sparse Imagination",
        "ours",
        "not run",
        "not run",
        f"80.0 % (67.0 to 88.8 %), 40 of 50, {model}, cem 100/100, made 1",
        "not run",
        "not run",
    )
    assert all("40 of 50" not in cell for cells in (*shown[:5], *shown[6:]) for cell in cells)


def test_another_k_at_planning_is_in_no_other_table(evaluated: Make) -> None:
    one = evaluated(k=98)
    one.run.config["settings"]["k"] = 32
    shown = tables(one)
    assert [title for title, table in shown.items() if any(map(run, table)) and title != "All tasks"] == [
        "Another K than in training, Push-T"
    ]
    assert run(shown["Another K than in training, Push-T"][1])


def test_two_evaluations_of_one_setup_are_both_shown(evaluated: Make) -> None:
    shown = tables(evaluated(solved=44), evaluated(solved=10, max_steps=1))
    full = shown["Without one of the three parts, Push-T, K = 32"][3:]
    assert [cells[2].split(", ")[1] for cells in full] == ["44 of 50", "10 of 50"]
    assert [cells[0] for cells in full] == ["full", "full"]
