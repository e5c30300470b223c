"""`scope-wm run --ablations`: what it trains and evaluates is what the tables of the report show."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from scope_wm.cli import main
from scope_wm.pipeline.settings import PipelineSettings
from scope_wm.pipeline.stages import stages
from scope_wm.pipeline.variants import SparseModel, Trial, planned_with, sparse_models, trials
from scope_wm.presets import lite
from scope_wm.report.evaluated import COPY, DENSE, NUM_TOKENS, Evaluated, Setup, read_evaluations
from scope_wm.report.ours import Ours
from scope_wm.report.paper_tables import paper_sections

CEMS = ("cem", "eb-cem")
EVALUATION = Path(__file__).parents[1] / "docs" / "results" / "lite" / "push_t" / "dense-cem"


@dataclass(frozen=True, kw_only=True)
class Listening(Ours):
    """Nothing was evaluated for a row, and what is asked for is written down."""

    asked: list[Setup | None] = field(default_factory=list)

    def of(self, setup: Setup | None) -> list[Evaluated]:
        self.asked.append(setup)
        return []


def setup_of(trial: Trial, models: dict[str, SparseModel]) -> Setup:
    model, search = models.get(trial.model), trial.search
    k = NUM_TOKENS if model is None else model.k
    return Setup(
        task="push_t",
        selector=DENSE if model is None else model.selector,
        background=COPY if model is None else model.background,
        trained_k=k,
        k=trial.k or k,
        planner=search.planner,
        samples=search.sample_counts if search.planner in CEMS else None,
    )


def test_every_row_of_the_papers_tables_is_evaluated() -> None:
    preset = lite("push_t")
    models = {planned_with(preset, model): model for model in sparse_models(preset, ablations=True)}
    models |= {model.name: model for model in models.values()}
    evaluated = {setup_of(trial, models) for trial in trials(preset, ablations=True)}
    listening = Listening(found=read_evaluations([EVALUATION]))
    paper_sections(listening)
    asked = {setup for setup in listening.asked if setup is not None and setup.task == "push_t"}
    assert len(asked) == 25
    never = {(setup.selector, setup.background) for setup in asked - evaluated}
    # The paper has none of these, and three trainings are dear.
    assert never == {("random", "cross-attention"), ("motion", "copy"), ("motion", "cross-attention")}


def test_stages_have_names_of_their_own_and_come_after_what_they_need() -> None:
    names = list[str]()
    for stage in stages(PipelineSettings(task="push_t", ablations=True)):
        assert stage.name not in names
        assert set(stage.after) <= set(names)
        names.append(stage.name)
    assert {"sparse-k32-random-copy", "refined-k32-random-copy", "sparse-k16", "refined-k16"} < set(names)
    assert {"evaluate/refined-k32-cem-300-100", "evaluate/refined-k98-at-k32-eb-cem"} < set(names)
    # What refining brings, and what cannot be refined.
    assert {"evaluate/teacher-cem", "evaluate/sparse-k32-eb-cem"} < set(names)
    assert "evaluate/sparse-k32-random-ignored-eb-cem" in names
    assert "refined-k32-random-ignored" not in names


def test_a_run_without_ablations_has_the_methods_models_only() -> None:
    plain = [stage.name for stage in stages(PipelineSettings(task="push_t"))]
    assert [name for name in plain if name.startswith("sparse")] == ["sparse-k98", "sparse-k32"]
    assert len([name for name in plain if name.startswith("evaluate")]) == 5


def test_a_run_may_encode_in_the_loop_draw_and_not_refine() -> None:
    asked = PipelineSettings(task="wall", preset="paper", on_the_fly=True, decoder=True)
    after = {stage.name: stage.after for stage in stages(asked) if not stage.name.startswith("evaluate")}
    assert after == {
        "data": (),
        "teacher": ("data",),
        "selector": ("data", "teacher"),
        "sparse-k98": ("data", "teacher", "selector"),
        "sparse-k32": ("data", "teacher", "selector"),
        "decoder": ("data",),
    }


def test_a_dry_run_tells_of_all_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--task", "wall", "--preset", "tiny", "--ablations", "--dry-run"]) == 0
    told = capsys.readouterr().out
    for stage in stages(PipelineSettings(task="wall", preset="tiny", ablations=True)):
        assert stage.name in told
