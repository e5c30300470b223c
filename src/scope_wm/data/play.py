"""`scope-wm data play`: one episode of each store, as a contact sheet or side by side in a video."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import imageio.v3 as iio
import numpy as np
import tyro
from jaxtyping import UInt8
from PIL import Image as Canvas
from PIL import ImageDraw, ImageFont

from scope_wm.data.store import Store
from scope_wm.files import write_file
from scope_wm.types import IMAGE_SIZE, Episode, Image, UsageError

MARGIN, GAP, ROW_GAP = 24, 8, 20
LABEL_WIDTH, LABEL_HEIGHT = 148, 36
NAME_SIZE, NOTE_SIZE = 22, 16
PAPER, EDGE, INK, PALE_INK = (255, 255, 255), (208, 208, 208), (32, 32, 32), (128, 128, 128)
FRAMES_PER_SECOND = 10
VIDEOS = (".mp4", ".gif")
SUFFIXES = (".png", *VIDEOS)

Picture = UInt8[np.ndarray, "height width 3"]


@dataclass(frozen=True, kw_only=True)
class PlaySettings:
    """Draw one episode of each store: a contact sheet (.png) or a video (.mp4, .gif).

    Example: scope-wm data play data/push_t data/wall --out tasks.mp4
    """

    stores: tyro.conf.Positional[tuple[Path, ...]]
    """directories of the stores"""
    out: Path
    """file to write; its ending says what it is"""
    episode: int = 0
    """which episode of each store"""
    columns: int = 8
    """frames in a row of the contact sheet"""


class Scene(NamedTuple):
    """An episode and the name of its task."""

    task: str
    episode: Episode


def play(settings: PlaySettings) -> None:
    """Draw the stores and write the file."""
    kind = settings.out.suffix
    if kind not in SUFFIXES:
        raise UsageError(f"expected --out to end with {', '.join(SUFFIXES)}, got {settings.out}")
    if not settings.stores:
        raise UsageError("expected at least one store")
    if settings.columns < 2:
        raise UsageError(f"expected --columns of at least 2, got {settings.columns}")
    scenes = [read_scene(path, settings.episode) for path in settings.stores]
    settings.out.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".png":
        iio.imwrite(settings.out, contact_sheet(scenes, settings.columns), optimize=True)
    else:
        write_video(settings.out, video(scenes))
    print(settings.out)


def read_scene(path: Path, episode: int) -> Scene:
    """Read one episode of a store."""
    store = Store.open(path)
    if not 0 <= episode < len(store):
        raise UsageError(
            f"expected --episode from 0 to {len(store) - 1}, the episodes that {path} has, got {episode}"
        )
    return Scene(store.config.task, store.episode(episode))


def contact_sheet(scenes: list[Scene], columns: int) -> Picture:
    """Draw one row of evenly spaced frames for each scene, its name at the left."""
    width = 2 * MARGIN + LABEL_WIDTH + columns * IMAGE_SIZE + (columns - 1) * GAP
    height = 2 * MARGIN + len(scenes) * IMAGE_SIZE + (len(scenes) - 1) * ROW_GAP
    canvas = Canvas.new("RGB", (width, height), PAPER)
    for row, (task, episode) in enumerate(scenes):
        top = MARGIN + row * (IMAGE_SIZE + ROW_GAP)
        middle = top + IMAGE_SIZE // 2
        write(canvas, (MARGIN, middle), task, "ls")
        write(canvas, (MARGIN, middle + NAME_SIZE), f"{len(episode)} frames", "ls", note=True)
        for column, frame in enumerate(np.linspace(0, len(episode) - 1, columns).round().astype(int)):
            left = MARGIN + LABEL_WIDTH + column * (IMAGE_SIZE + GAP)
            place(canvas, episode.frames[frame], left, top)
    return np.array(canvas)


def video(scenes: list[Scene]) -> Iterator[Picture]:
    """Draw the scenes side by side, names below, as long as the longest; the others begin again."""
    width = 2 * MARGIN + len(scenes) * IMAGE_SIZE + (len(scenes) - 1) * GAP
    height = MARGIN + IMAGE_SIZE + LABEL_HEIGHT
    for time in range(max(len(scene.episode) for scene in scenes)):
        canvas = Canvas.new("RGB", (width, height), PAPER)
        for column, (task, episode) in enumerate(scenes):
            left = MARGIN + column * (IMAGE_SIZE + GAP)
            place(canvas, episode.frames[time % len(episode)], left, MARGIN)
            below = (left + IMAGE_SIZE // 2, MARGIN + IMAGE_SIZE + LABEL_HEIGHT // 2)
            write(canvas, below, task, "mm", note=True)
        yield np.array(canvas)


def place(canvas: Canvas.Image, frame: Image, left: int, top: int) -> None:
    """Put a frame on the canvas with a thin edge, for the frames of some tasks are white themselves."""
    box = (left - 1, top - 1, left + IMAGE_SIZE, top + IMAGE_SIZE)
    ImageDraw.Draw(canvas).rectangle(box, outline=EDGE)
    canvas.paste(Canvas.fromarray(frame), (left, top))


def write(canvas: Canvas.Image, at: tuple[int, int], text: str, anchor: str, *, note: bool = False) -> None:
    """Write a name, or a note, which is smaller and paler."""
    font = ImageFont.load_default(NOTE_SIZE if note else NAME_SIZE)
    ImageDraw.Draw(canvas).text(at, text, PALE_INK if note else INK, font, anchor)


def write_video(path: Path, images: Iterator[Picture]) -> None:
    """Write a video; its ending says which: every browser plays .mp4, and Markdown shows .gif."""
    write_file(path, gif(images) if path.suffix == ".gif" else mp4(images))


def gif(images: Iterator[Picture]) -> bytes:
    """Return pictures as the content of an animation that begins again for ever."""
    duration = 1000 / FRAMES_PER_SECOND
    return iio.imwrite("<bytes>", list(images), extension=".gif", duration=duration, loop=0, optimize=True)


def mp4(images: Iterator[Picture]) -> bytes:
    """Return pictures as the content of a video file: H.264, 4:2:0, which needs even sides (ours are)."""
    content = io.BytesIO()
    with iio.imopen(content, "w", plugin="pyav", extension=".mp4") as file:
        file.init_video_stream("libx264", fps=FRAMES_PER_SECOND, pixel_format="yuv420p")
        for image in images:
            file.write_frame(image)
    return content.getvalue()
