from collections.abc import Callable
from pathlib import Path

import av
import imageio.v3 as iio
import numpy as np
import pytest

from scope_wm.cli import main
from scope_wm.data.play import GAP, LABEL_HEIGHT, LABEL_WIDTH, MARGIN, ROW_GAP
from scope_wm.data.store import Store

MakeStore = Callable[..., Store]


def play(*words: object) -> int:
    return main(["data", "play", *map(str, words)])


def test_a_contact_sheet_has_a_row_of_spaced_frames_for_each_store(wall_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "made" / "sheet.png"
    assert play(wall_path, wall_path, "--out", out, "--episode", 3, "--columns", 5) == 0
    sheet = iio.imread(out)
    assert sheet.shape == (2 * MARGIN + 2 * 224 + ROW_GAP, 2 * MARGIN + LABEL_WIDTH + 5 * 224 + 4 * GAP, 3)
    frames = Store.open(wall_path).episode(3).frames
    for column, frame in enumerate([0, 12, 24, 37, 49]):
        left, top = MARGIN + LABEL_WIDTH + column * (224 + GAP), MARGIN + 224 + ROW_GAP
        assert np.array_equal(sheet[top : top + 224, left : left + 224], frames[frame])
    label = sheet[MARGIN : MARGIN + 224, MARGIN : MARGIN + LABEL_WIDTH - GAP]
    assert label.min() < 100  # ink
    assert (sheet[:, : MARGIN - 1] == 255).all()  # margin


def test_a_video_shows_the_stores_side_by_side_and_loops_the_short_one(
    wall_path: Path, make_store: MakeStore, tmp_path: Path
) -> None:
    out = tmp_path / "video.mp4"
    assert play(wall_path, make_store([20]).path, "--out", out) == 0
    with av.open(out) as file:
        stream = file.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
    images = iio.imread(out, plugin="pyav")
    assert images.shape == (50, MARGIN + 224 + LABEL_HEIGHT, 2 * MARGIN + 2 * 224 + GAP, 3)
    shown = images[:, MARGIN : MARGIN + 224, MARGIN : MARGIN + 224].astype(float)
    frames = Store.open(wall_path).episode(0).frames
    assert np.abs(shown - frames).mean() < 5
    assert np.abs(shown - frames[::-1]).mean() > 1
    grey = images[:, MARGIN + 112, MARGIN + 224 + GAP + 112].mean(axis=1)  # frame t of the short one is all t
    assert np.abs(grey - np.arange(50) % 20).max() < 4


def test_a_gif_has_every_frame(make_store: MakeStore, tmp_path: Path) -> None:
    out = tmp_path / "video.gif"
    assert play(make_store([6]).path, "--out", out) == 0
    assert iio.imread(out).shape == (6, MARGIN + 224 + LABEL_HEIGHT, 2 * MARGIN + 224, 3)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--out", "film.avi"], "expected --out to end with .png, .mp4, .gif"),
        (["--out", "sheet.png", "--episode", "12"], "expected --episode from 0 to 11"),
        (["--out", "sheet.png", "--columns", "1"], "expected --columns of at least 2"),
    ],
)
def test_wrong_requests_say_what_was_expected(
    wall_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(wall_path, *words) == 2
    assert message in capsys.readouterr().err


def test_a_store_is_needed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play("--out", tmp_path / "sheet.png") == 2
    assert "expected at least one store" in capsys.readouterr().err
