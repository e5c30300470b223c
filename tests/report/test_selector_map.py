import json
from pathlib import Path

import numpy as np
import pytest
import torch

from scope_wm.data.play import GAP, LABEL_WIDTH, MARGIN
from scope_wm.data.split import open_splits
from scope_wm.data.token_cache import TokenCache
from scope_wm.data.windows import Windows
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.world_model import prediction_loss
from scope_wm.report.run_directory import open_held_out
from scope_wm.report.selector_map import (
    JudgedFrames,
    draw_selector,
    heat,
    judge_frames,
    kept,
    selector_map,
)
from scope_wm.report.sheet import HEADING
from scope_wm.train.distill import load_head
from scope_wm.types import UsageError

WHITE = np.full((224, 224, 3), 255, np.uint8)
PATCH = (slice(32, 48), slice(80, 96))  # row 2, column 5
TOKEN = 2 * 14 + 5


def peaked(token: int, height: float) -> torch.Tensor:
    """Return shares of 196 tokens of which one has its own height."""
    values = torch.full((196,), (1 - height) / 195)
    values[token] = height
    return values


def test_the_largest_value_has_the_brightest_square() -> None:
    brightness = heat(WHITE, peaked(TOKEN, 0.5) / 0.5).astype(int).sum(-1)
    rows, columns = np.nonzero(brightness == brightness.max())
    assert (rows.min(), rows.max() + 1) == (PATCH[0].start, PATCH[0].stop)
    assert (columns.min(), columns.max() + 1) == (PATCH[1].start, PATCH[1].stop)
    assert brightness.max() > 2 * brightness.min()


def test_the_frame_shines_through_the_colours() -> None:
    frame = WHITE.copy()
    frame[100:120] = 0
    shown = heat(frame, torch.full((196,), 0.5)).astype(int)
    assert (shown[50, 50] - shown[110, 50] > 50).all()


def test_kept_tokens_are_lit_and_counted_against_the_teachers() -> None:
    q, logits = torch.arange(196.0), torch.arange(196.0)
    assert kept(WHITE, q, logits, 32).note == "32 of the teacher's 32"
    picture, note = kept(WHITE, -q, logits, 98)
    assert note == "0 of the teacher's 98"
    assert (picture[130:] == 255).all(-1).mean() > 0.9  # the lower half; its border is drawn
    assert (picture[:90] == 102).all(-1).mean() > 0.9


def test_both_maps_of_a_frame_have_one_scale() -> None:
    logits = peaked(TOKEN, 0.25).log()
    judged = JudgedFrames(
        numbers=np.array([3]), frames=WHITE[None], q=peaked(TOKEN, 0.5)[None], logits=logits[None]
    )
    canvas = selector_map(judged)
    sharp, soft = (heat(WHITE, peaked(TOKEN, height) / 0.5) for height in (0.5, 0.25))
    assert not np.array_equal(sharp[PATCH], soft[PATCH])
    top = MARGIN + HEADING
    for column, wanted in enumerate((WHITE, sharp, soft)):
        left = MARGIN + LABEL_WIDTH + column * (224 + GAP)
        np.testing.assert_array_equal(canvas[top : top + 224, left : left + 224], wanted)


def test_frames_are_held_out_and_judged_by_teacher_and_head(tiny_run: Path) -> None:
    teacher = TrainedModel.from_pretrained(tiny_run / "teacher")
    head, _ = load_head(tiny_run / "selector")
    judged = judge_frames(teacher, head, open_held_out(tiny_run, teacher.config.encoder), 3)
    split, config, model = open_splits(tiny_run / "data").validation, teacher.config, teacher.world_model
    assert set(split.store.episode_of(judged.numbers)) <= set(split.episodes)
    np.testing.assert_array_equal(judged.frames, split.store.frames(judged.numbers))
    cache = TokenCache.open(tiny_run / "tokens")
    windows = Windows(split, config.statistics, history=2, frameskip=5, read=cache.read)
    row = int(np.flatnonzero(windows.starts + 5 == judged.numbers[1])[0])  # the second frame of its window
    visual, proprio, actions = (part.float() for part in windows.batch([row]))
    seen = visual[:, :2].clone().requires_grad_()
    loss = prediction_loss(model, torch.cat([seen, visual[:, 2:]], dim=1), proprio, actions)
    (gradient,) = torch.autograd.grad(loss, seen)
    r = (seen * gradient)[0, 1].norm(dim=-1).detach()
    torch.testing.assert_close(judged.q[1], r / r.sum(), rtol=1e-3, atol=1e-6)
    with torch.no_grad():
        embedded = model.fuse.proprio(proprio[:, 1]), model.fuse.action(actions[:, 1])
        logits = head(visual[:, 1], *embedded)[0]
    torch.testing.assert_close(judged.logits[1], logits, rtol=1e-3, atol=1e-4)


def test_a_selector_of_another_teacher_is_refused(tiny_run: Path, tmp_path: Path) -> None:
    (tmp_path / "selector").mkdir()
    for path in (*tiny_run.glob("[dt]*"), tiny_run / "selector" / "model.safetensors"):
        (tmp_path / path.relative_to(tiny_run)).symlink_to(path)
    header = json.loads((tiny_run / "selector" / "config.json").read_text())
    header["model"]["teacher"] = 64 * "0"
    (tmp_path / "selector" / "config.json").write_text(json.dumps(header))
    with pytest.raises(UsageError, match="another dense model"):
        draw_selector(tmp_path)
