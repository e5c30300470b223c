"""Which sparse models a run trains and what it evaluates: the paper's method; with `--ablations`, the rest.

The ablations are those of the paper's tables, and what it did not try: another background, selection by
motion, Sparse Imagination, other planners. Where the paper counts at K = 32, so do they.
"""

from dataclasses import dataclass
from typing import Literal

from scope_wm.evaluate.settings import PlannerName, SearchSettings
from scope_wm.presets import Preset

SMALL_K = 32
BUDGETS = (147, 98, 64, 32, 16)
MISMATCHED = ((98, 32), (32, 98))  # trained with, planned with
DENSE = "teacher"
OTHER_PLANNERS: tuple[PlannerName, ...] = ("icem", "mppi", "gradient", "random-shooting")


@dataclass(frozen=True, kw_only=True)
class SparseModel:
    """A sparse model to train; named by what differs from the method."""

    k: int
    selector: Literal["distilled", "random", "motion"] = "distilled"
    background: Literal["foreground-delta", "copy", "cross-attention", "ignored"] = "foreground-delta"

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


def trials(preset: Preset, *, ablations: bool) -> list[Trial]:
    """Return what a run evaluates: all models with CEM, the sparse ones with the paper's EB-CEM too."""
    steps = preset.max_steps
    cem, eb_cem = (SearchSettings(planner=name, max_steps=steps) for name in ("cem", "eb-cem"))
    method = [SparseModel(k=k).name for k in preset.ks]
    made = [Trial(model=model, search=cem) for model in (DENSE, *method)]
    made += [Trial(model=model, search=eb_cem) for model in method]
    if not ablations:
        return made
    small = SparseModel(k=SMALL_K).name
    searches = [
        SearchSettings(planner="cem", samples=later, elites=later // 10, first_samples=first, max_steps=steps)
        for first, later in ((100, 300), (300, 100), (200, 200))
    ]
    searches += [SearchSettings(planner=name, max_steps=steps) for name in OTHER_PLANNERS]
    made += [Trial(model=model.name, search=eb_cem) for model in sparse_models(preset, ablations=True)]
    made += [Trial(model=DENSE, search=eb_cem), *(Trial(model=small, search=search) for search in searches)]
    made += [Trial(model=SparseModel(k=k).name, search=eb_cem, k=other) for k, other in MISMATCHED]
    return list(dict.fromkeys(made))
