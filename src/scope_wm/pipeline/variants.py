"""Which sparse models a run trains and what it evaluates: the paper's method; with `--ablations`, the rest.

The ablations are those of the paper's tables, and what it did not try: another background, selection by
motion, Sparse Imagination, other planners. Where the paper counts at K = 32, so do they.
"""

from dataclasses import dataclass
from typing import Literal

from scope_wm.evaluate.settings import SearchSettings
from scope_wm.presets import Preset
from scope_wm.report.paper_tables import BUDGETS, OTHER_PLANNERS, SMALL_K

MISMATCHED = ((98, 32), (32, 98))  # trained with, planned with
DENSE = "teacher"


@dataclass(frozen=True, kw_only=True)
class SparseModel:
    """A sparse model to train; named by what differs from the method."""

    k: int
    selector: Literal["distilled", "random", "motion"] = "distilled"
    background: Literal["foreground-delta", "copy", "cross-attention", "ignored"] = "foreground-delta"

    @property
    def imagines_frames(self) -> bool:
        """Tell whether it imagines whole frames; Sparse Imagination imagines some patches."""
        return self.background != "ignored"

    @property
    def name(self) -> str:
        """Return the name of its stage."""
        other = (self.selector.removeprefix("distilled"), self.background.removeprefix("foreground-delta"))
        return "-".join(filter(None, (f"sparse-k{self.k}", *other)))


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A model to evaluate with a planner, or with another K than it was trained with."""

    model: str
    search: SearchSettings
    k: int | None = None

    @property
    def name(self) -> str:
        """Return the name of its stage within `evaluate`."""
        usual = SearchSettings(planner=self.search.planner).sample_counts
        counts = self.search.sample_counts
        samples = "" if counts == usual else "-".join(map(str, counts))
        at = "" if self.k is None else f"at-k{self.k}"
        return "-".join(filter(None, (self.model, at, self.search.planner, samples)))


def refined(model: str) -> str:
    """Return the name of the stage that trains a model further."""
    return f"refined-{'dense' if model == DENSE else model.removeprefix('sparse-')}"


CHANGED = (
    SparseModel(k=SMALL_K, selector="random", background="copy"),
    SparseModel(k=SMALL_K, selector="random"),
    SparseModel(k=SMALL_K, background="copy"),
    SparseModel(k=SMALL_K, background="cross-attention"),
    SparseModel(k=SMALL_K, selector="motion"),
    SparseModel(k=SMALL_K, selector="random", background="ignored"),  # Sparse Imagination
)


def sparse_models(preset: Preset, *, ablations: bool) -> list[SparseModel]:
    """Return the sparse models of a run."""
    models = [SparseModel(k=k) for k in preset.ks]
    if ablations:
        models += [*CHANGED, *(SparseModel(k=k) for k in BUDGETS if k not in preset.ks)]
    return models


def planned_with(preset: Preset, model: SparseModel | None = None) -> str:
    """Return the stage whose model is planned with, the last that trains it; None: of the dense model."""
    name = DENSE if model is None else model.name
    can_be_refined = model is None or model.imagines_frames
    return refined(name) if preset.refine and can_be_refined else name


def trials(preset: Preset, *, ablations: bool) -> list[Trial]:
    """Return what a run evaluates: all models with CEM, the sparse ones with the paper's EB-CEM too."""
    steps = preset.max_steps
    cem, eb_cem = (SearchSettings(planner=name, max_steps=steps) for name in ("cem", "eb-cem"))
    dense, method = planned_with(preset), [planned_with(preset, SparseModel(k=k)) for k in preset.ks]
    made = [Trial(model=model, search=cem) for model in (dense, *method)]
    made += [Trial(model=model, search=eb_cem) for model in method]
    if not ablations:
        return made
    small = SparseModel(k=SMALL_K)
    searches = [
        SearchSettings(planner="cem", samples=later, elites=later // 10, first_samples=first, max_steps=steps)
        for first, later in ((100, 300), (300, 100), (200, 200))
    ]
    searches += [SearchSettings(planner=name, max_steps=steps) for name in OTHER_PLANNERS]
    models = sparse_models(preset, ablations=True)
    made += [Trial(model=planned_with(preset, model), search=eb_cem) for model in models]
    made.append(Trial(model=dense, search=eb_cem))
    made += [Trial(model=planned_with(preset, small), search=search) for search in searches]
    made += [
        Trial(model=planned_with(preset, SparseModel(k=k)), search=eb_cem, k=other) for k, other in MISMATCHED
    ]
    made += [Trial(model=DENSE, search=cem), Trial(model=small.name, search=eb_cem)]  # not refined
    return list(dict.fromkeys(made))
