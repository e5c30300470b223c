from pathlib import Path

import numpy as np
import torch

from scope_wm.data.play import GAP, LABEL_WIDTH, MARGIN
from scope_wm.data.split import open_splits
from scope_wm.data.token_cache import TokenCache
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.report.background_map import (
    background_map,
    background_of,
    bare,
    draw_background,
    most_changing,
    one_step_errors,
)
from scope_wm.report.run_directory import open_held_out
from scope_wm.report.selector_map import heat
from scope_wm.report.sheet import HEADING
from scope_wm.train.dynamics import held_out_figures

WHITE = np.full((224, 224, 3), 255, np.uint8)


def test_only_the_background_is_coloured() -> None:
    background = torch.zeros(196, dtype=torch.bool)
    background[:14] = True  # the upper row
    shown = bare(WHITE, torch.ones(196), background)
    assert (shown[16:] == 255).all()
    np.testing.assert_array_equal(shown[:16], heat(WHITE, torch.ones(196))[:16])


def test_the_windows_are_those_that_change_most(tiny_run: Path) -> None:
    config = TrainedModel.from_pretrained(tiny_run / "sparse-k32").config
    window, frames = most_changing(config, open_held_out(tiny_run, config.encoder), 2)
    split, cache = open_splits(tiny_run / "data").validation, TokenCache.open(tiny_run / "tokens")
    (episode,) = split.episodes
    firsts = split.store.first[episode] + np.arange(30 - 5)  # one action of five steps
    begin, end = (cache.read(firsts + steps).astype(np.float64) for steps in (0, 5))
    first = firsts[np.square(end - begin).mean((1, 2)).argmax()]
    assert len(frames) == 1  # there is one held-out episode
    np.testing.assert_array_equal(frames[0], split.store.frames(first + np.array([0, 5])))
    np.testing.assert_array_equal(window.visual[0].numpy(), cache.read(first + np.array([0, 5])))


def test_errors_are_those_that_the_training_reports(tiny_run: Path) -> None:
    trained = TrainedModel.from_pretrained(tiny_run / "sparse-k32")
    model = trained.world_model
    window, _ = most_changing(trained.config, open_held_out(tiny_run, trained.config.encoder), 1)
    with torch.no_grad():
        errors, background = one_step_errors(model, window), background_of(model, window)
        copied = (window.visual[:, 0] - window.visual[:, 1]).square().mean(-1)
    figures = held_out_figures(model, [window])
    assert int((~background).sum()) == 32
    torch.testing.assert_close(float(errors.mean()), figures["one_step"])
    share = float(errors[background].mean() / copied[background].mean())
    torch.testing.assert_close(share, figures["background_of_copy"])


def test_a_row_shows_both_frames_and_an_error_map_for_each_model(tiny_run: Path) -> None:
    models = {name: TrainedModel.from_pretrained(tiny_run / name) for name in ("sparse-k32", "teacher")}
    config = models["teacher"].config
    window, frames = most_changing(config, open_held_out(tiny_run, config.encoder), 1)
    canvas = background_map({name: one.world_model for name, one in models.items()}, window, frames)
    np.testing.assert_array_equal(canvas, draw_background(tiny_run, "sparse-k32", "teacher"))
    cells = [panel(canvas, column) for column in range(5)]
    np.testing.assert_array_equal(cells[0], frames[0, 0])
    np.testing.assert_array_equal(cells[1], frames[0, 1])
    kept = ~background_of(models["sparse-k32"].world_model, window)[0]
    row, column = divmod(int(kept.nonzero()[0]), 14)
    square = np.s_[16 * row : 16 * row + 16, 16 * column : 16 * column + 16]
    for cell in cells[2:]:
        np.testing.assert_array_equal(cell[square], frames[0, 0][square])
    assert not np.array_equal(cells[2], cells[3])
    assert not np.array_equal(cells[3], cells[4])


def panel(canvas: np.ndarray, column: int) -> np.ndarray:
    left, top = MARGIN + LABEL_WIDTH + column * (224 + GAP), MARGIN + HEADING
    return canvas[top : top + 224, left : left + 224]
