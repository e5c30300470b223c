import pytest

from scope_wm.model.transformer import TransformerConfig
from scope_wm.presets import lite, paper
from scope_wm.tasks import TASKS


@pytest.mark.parametrize(
    ("task", "episodes", "history", "frameskip", "batch", "instances"),
    [
        ("point_maze", 2000, 3, 5, 512, 50),
        ("wall", 1920, 1, 5, 512, 50),
        ("push_t", 18685, 3, 5, 512, 50),
        ("rope", 1000, 1, 1, 64, 10),
        ("granular", 1000, 1, 1, 64, 10),
    ],
)
def test_the_paper_preset_is_the_papers(
    task: str, episodes: int, history: int, frameskip: int, batch: int, instances: int
) -> None:
    preset = paper(task)
    assert (preset.episodes, preset.ks, preset.instances, preset.max_steps) == (
        episodes,
        (98, 32),
        instances,
        None,
    )
    assert (preset.model.history, TASKS[task].history, TASKS[task].frameskip) == (None, history, frameskip)
    assert preset.model.transformer == TransformerConfig(
        depth=6, heads=16, head_width=64, mlp_width=2048, dropout=0.1
    )
    assert preset.model.output == "absolute"
    fits = {"teacher": preset.teacher, "selector": preset.selector.fit, "sparse": preset.sparse}
    assert {
        name: (fit.optimiser.lr, fit.optimiser.weight_decay, fit.batch, fit.epochs)
        for name, fit in fits.items()
    } == {
        "teacher": (5e-4, 0.01, 32, 100),
        "selector": (3e-4, 1e-4, 256, 80),
        "sparse": (1e-4, 0.01, batch, 100),
    }
    for fit in fits.values():
        how = fit.optimiser
        assert (how.schedule, how.warmup, how.clip, how.ema, fit.seed) == ("constant", 0, None, None, 0)
        assert fit.max_samples is None
    assert (preset.selector.windows, preset.selector.hidden) == (3200, 128)


def test_the_lite_preset_is_for_a_laptop() -> None:
    for task in ("point_maze", "wall", "push_t", "rope", "granular"):
        preset = lite(task)
        assert (preset.encoder.source, preset.model.history, preset.selector.hidden) == ("student", 1, 64)
        assert preset.ks == (98, 32)
        samples = 300_000 if task == "push_t" else 120_000
        assert preset.teacher.max_samples == preset.sparse.max_samples == samples
        assert preset.refine is not None
        assert preset.refine.fit.max_samples == samples // 5
        assert preset.refine.fit.optimiser.lr == (1e-3 if task == "push_t" else 2e-4)
