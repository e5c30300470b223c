"""A page of titled sections: HTML that needs nothing beside it, or Markdown, which keeps the plots only.

In HTML, pictures and videos are data URIs; beside Markdown, plots are files. Tables and sheets that are wider
than the window scroll by themselves.
"""

import base64
import html
import re
from collections.abc import Sequence
from importlib.resources import files
from typing import Literal, NamedTuple, TypeGuard

from scope_wm.report.results import table

FRAME = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p class="banner">{banner}</p>
<nav>{links}</nav>
</header>
<main>
{sections}
</main>
</body>
</html>
"""

PLOTS = "plots"  # the directory of the plots, beside the Markdown
CLASSES = {"image/png": "sheet", "image/svg+xml": "plot", "video/mp4": "film"}


class Table(NamedTuple):
    """Rows of cells below the names of their columns."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


class Notes(NamedTuple):
    """Short remarks, one below the other."""

    lines: list[str]


class Media(NamedTuple):
    """A sheet of pictures (PNG), a plot (SVG) or a video, and what it shows."""

    content: bytes
    kind: Literal["image/png", "image/svg+xml", "video/mp4"]
    caption: str


Block = str | Table | Notes | Media


class Section(NamedTuple):
    """What is said and shown under one title; level 3 is a part of the section of level 2 before it."""

    title: str
    blocks: Sequence[Block]
    level: Literal[2, 3] = 2


def html_page(title: str, banner: str, sections: Sequence[Section]) -> str:
    """Return the whole page."""
    links = [
        f'<a href="#s{number}">{_inline(section.title)}</a>'
        for number, section in enumerate(sections)
        if section.level == 2
    ]
    return FRAME.format(
        title=html.escape(title),
        style=files("scope_wm.report").joinpath("page.css").read_text(),
        banner=_inline(banner),
        links="\n".join(links),
        sections="\n".join(_html_section(number, section) for number, section in enumerate(sections)),
    )


def markdown_page(title: str, banner: str, sections: Sequence[Section]) -> str:
    """Return texts, tables and plots of the page; a section of other pictures only is left out."""
    parts = [f"# {title}", f"**{banner}**"]
    for section in sections:
        told = [
            _markdown(block) for block in section.blocks if is_plot(block) or not isinstance(block, Media)
        ]
        if told or not section.blocks:
            parts += [f"{'#' * section.level} {section.title}", *told]
    return "\n\n".join(parts) + "\n"


def plot_files(sections: Sequence[Section]) -> dict[str, bytes]:
    """Return the plots that the Markdown shows, by the names of their files."""
    plots = [block for section in sections for block in section.blocks if is_plot(block)]
    return {_file_name(plot): plot.content for plot in plots}


def _html_section(number: int, section: Section) -> str:
    heading = f'<h{section.level} id="s{number}">{_inline(section.title)}</h{section.level}>'
    return "\n".join([heading, *map(_html, section.blocks)])


def _html(block: Block) -> str:
    match block:
        case Table():
            head = "".join(f"<th>{_inline(name)}</th>" for name in block.columns)
            rows = ["".join(f"<td>{_inline(cell)}</td>" for cell in row) for row in block.rows]
            body = "\n".join(f"<tr>{row}</tr>" for row in rows)
            return f'<div class="scroll"><table>\n<tr>{head}</tr>\n{body}\n</table></div>'
        case Notes():
            return "<ul>\n" + "\n".join(f"<li>{_inline(line)}</li>" for line in block.lines) + "\n</ul>"
        case Media():
            return _figure(block)
        case _:
            return f"<p>{_inline(block)}</p>"


def _figure(media: Media) -> str:
    source = f"data:{media.kind};base64,{base64.b64encode(media.content).decode()}"
    if media.kind == "video/mp4":
        shown = f'<video controls muted loop playsinline preload="metadata" src="{source}"></video>'
    else:
        shown = f'<img alt="{html.escape(media.caption)}" src="{source}">'
    caption = f"<figcaption>{_inline(media.caption)}</figcaption>"
    return f'<figure class="{CLASSES[media.kind]}"><div class="scroll">{shown}</div>{caption}</figure>'


def is_plot(block: Block) -> TypeGuard[Media]:
    """Tell whether a block is a plot, which Markdown shows too."""
    return isinstance(block, Media) and block.kind == "image/svg+xml"


def _file_name(plot: Media) -> str:
    return "-".join(re.findall(r"[a-z0-9]+", plot.caption.lower())) + ".svg"


def _markdown(block: Block) -> str:
    match block:
        case Media():
            return f"![{block.caption}]({PLOTS}/{_file_name(block)})"
        case Table():
            return table(block.columns, block.rows)
        case Notes():
            return "\n".join(f"- {line}" for line in block.lines)
        case _:
            return block


def _inline(text: str) -> str:
    """Return text as HTML; what stands between backticks is code."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))
