"""The video of one problem: now, the goal, the imagined end, the tokens kept, the cost of every search.

Each step of control is first planned, while the curve of its costs grows, and then acted out. The kept tokens
are those of the image that was planned from; the rest of it is dimmed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import cv2
import numpy as np
from jaxtyping import Bool, Float64, UInt8
from PIL import Image as Canvas

from scope_wm.data.play import EDGE, GAP, MARGIN, PAPER, Picture, write
from scope_wm.types import IMAGE_SIZE, Image

PANEL = 3 * IMAGE_SIZE // 2
FIRST_LINE, SECOND_LINE, HEADING, PLOT_HEADING = 40, 66, 112, 64  # lines of text end, panels begin
PLOT_HEIGHT, PLOT_MARGIN, AXIS = 128, 8, 52
PLANNING_FRAMES = 10  # of a search, at most
ACTING_FRAMES = 25  # of a step, at least: where an action is a whole push, its picture stays
END_FRAMES = 15
BLUE, PALE_BLUE, AMBER, GREEN = (31, 98, 189), (150, 184, 228), (255, 170, 0), (26, 150, 65)
DIMMED = 0.4
TINY = 1e-9  # costs that differ by less are drawn as the same

Colour = tuple[int, int, int]


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One step of control: how it was planned, and the frame before and after each of its actions."""

    frames: UInt8[np.ndarray, "T 224 224 3"]
    distances: list[float]
    trace: Float64[np.ndarray, " iterations"]
    kept: Bool[np.ndarray, "side side"] | None = None
    imagined: Image | None = None  # the end that the model expects


@dataclass(frozen=True, kw_only=True)
class Story:
    """One problem from its start to its end."""

    task: str
    note: str
    goal: Image
    scenes: list[Scene]
    max_steps: int
    verdict: str
    success: bool


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What one picture of the video shows: a scene, how much of its search, how much of its actions."""

    scene: int
    iterations: int
    frame: int
    status: str


def video(story: Story) -> Iterator[Picture]:
    """Draw the story from beginning to end."""
    for moment in moments(story):
        yield draw(story, moment)


def moments(story: Story) -> Iterator[Moment]:
    """Tell what to show, picture by picture."""
    for number, scene in enumerate(story.scenes):
        step, searched, acted = f"step {number + 1} of {story.max_steps}", len(scene.trace), len(scene.frames)
        shown = min(max(searched, 1), PLANNING_FRAMES)
        for iterations in np.linspace(searched / shown, searched, shown).round().astype(int).tolist():
            yield Moment(scene=number, iterations=iterations, frame=0, status=f"{step}: planning")
        for frame in range(1, acted):
            moment = Moment(scene=number, iterations=searched, frame=frame, status=f"{step}: acting")
            yield from [moment] * max(1, ACTING_FRAMES // (acted - 1))
    yield from [replace(moment, status=story.verdict)] * END_FRAMES


def draw(story: Story, moment: Moment) -> Picture:
    """Draw one picture of the video."""
    scene, solved = story.scenes[moment.scene], story.success and moment.status == story.verdict
    panels = {"now": enlarged(scene.frames[moment.frame]), "goal": enlarged(story.goal)}
    if scene.imagined is not None:
        panels["imagined end of this step"] = enlarged(scene.imagined)
    if scene.kept is not None:
        title = f"{scene.kept.sum()} of {scene.kept.size} tokens kept"
        panels[title] = spotlight(enlarged(scene.frames[0]), scene.kept)
    width = len(panels) * (PANEL + GAP) - GAP
    below = HEADING + PANEL + PLOT_HEADING
    canvas = Canvas.new("RGB", (width + 2 * MARGIN, below + PLOT_HEIGHT + MARGIN), PAPER)
    distance = f"distance {scene.distances[moment.frame]:.3g}"
    write(canvas, (MARGIN, FIRST_LINE), story.task, "ls")
    write(canvas, (MARGIN, SECOND_LINE), story.note, "ls", note=True)
    write(canvas, (MARGIN + width, FIRST_LINE), moment.status, "rs")
    write(canvas, (MARGIN + width, SECOND_LINE), distance, "rs", note=True)
    for column, (title, picture) in enumerate(panels.items()):
        left = MARGIN + column * (PANEL + GAP)
        write(canvas, (left + PANEL // 2, HEADING - GAP), title, "ms", note=True)
        edge = outlined(picture, GREEN, 4) if solved and title == "now" else outlined(picture, EDGE, 1)
        canvas.paste(Canvas.fromarray(edge), (left, HEADING))
    write(canvas, (MARGIN, below - 2 * GAP), "cost of the best candidate in every iteration", "ls", note=True)
    for cost, height in zip(costs(story), (PLOT_HEIGHT - PLOT_MARGIN, PLOT_MARGIN), strict=True):
        write(canvas, (MARGIN + AXIS - GAP, below + height), f"{cost:.3g}", "rm", note=True)
    canvas.paste(Canvas.fromarray(plot(story, moment, width - AXIS)), (MARGIN + AXIS, below))
    return np.array(canvas)


def enlarged(image: Image) -> Picture:
    """Return an image at the size of a panel."""
    return cv2.resize(image, (PANEL, PANEL), interpolation=cv2.INTER_CUBIC)


def outlined(picture: Picture, colour: Colour, thickness: int) -> Picture:
    """Return a picture with an edge, for some tasks are as white as the paper."""
    edged = picture.copy()
    for inset in range(thickness):
        cv2.rectangle(edged, (inset, inset), (PANEL - 1 - inset, PANEL - 1 - inset), colour)
    return edged


def spotlight(picture: Picture, kept: Bool[np.ndarray, "side side"]) -> Picture:
    """Dim the patches that are not kept, and draw the border between them and those that are."""
    mask = cv2.resize(kept.astype(np.uint8), picture.shape[1::-1], interpolation=cv2.INTER_NEAREST)
    lit = np.where(mask[..., None] == 1, picture, DIMMED * picture).astype(np.uint8)
    outlines, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    return cv2.drawContours(lit, outlines, -1, AMBER, 2)


def costs(story: Story) -> tuple[float, float]:
    """Return the least and the largest cost of all searches; 0 if none completed an iteration in its time."""
    traces = np.concatenate([scene.trace for scene in story.scenes])
    return (float(traces.min()), float(traces.max())) if len(traces) else (0.0, 0.0)


def plot(story: Story, moment: Moment, width: int) -> Picture:
    """Draw the costs of all searches up to this moment, one curve for each, side by side."""
    picture = np.full((PLOT_HEIGHT, width, 3), 255, np.uint8)
    longest, column = max(len(scene.trace) for scene in story.scenes), width / len(story.scenes)
    low, high = costs(story)
    floor, height = PLOT_HEIGHT - PLOT_MARGIN, PLOT_HEIGHT - 2 * PLOT_MARGIN
    cv2.line(picture, (0, floor), (width - 1, floor), EDGE, 1)
    for number, scene in enumerate(story.scenes):
        left, now = number * column, number == moment.scene
        cv2.line(picture, (round(left), PLOT_MARGIN), (round(left), floor), EDGE, 1)
        trace = scene.trace[: moment.iterations] if now else scene.trace
        if number > moment.scene or not len(trace):
            continue
        x = left + column * (np.arange(len(trace)) + 0.5) / longest
        y = floor - height * (trace - low) / max(high - low, TINY)
        points = np.stack([x, y], axis=1).round().astype(np.int32)
        cv2.polylines(picture, [points], False, BLUE if now else PALE_BLUE, 2, cv2.LINE_AA)
        if now:
            cv2.circle(picture, points[-1].tolist(), 4, BLUE, cv2.FILLED, cv2.LINE_AA)
    return picture
