import base64
import re

from scope_wm.report.page import Media, Notes, Section, Table, html_page, markdown_page, plot_files

SECTIONS = [
    Section("K < N & more", ["See `data` & so on.", Table(("model", "solved"), [("dense", "<1 %")])]),
    Section("Parts", [Notes(["one", "two"])], 3),
    Section("Pictures", [Media(b"\x89PNG", "image/png", "A < B"), Media(b"film", "video/mp4", "It moves.")]),
]


def test_html_has_every_text_escaped_and_code_marked() -> None:
    page = html_page("Results", "Not a benchmark.", SECTIONS)
    assert '<h2 id="s0">K &lt; N &amp; more</h2>' in page
    assert "<p>See <code>data</code> &amp; so on.</p>" in page
    assert "<th>model</th><th>solved</th>" in page
    assert "<td>dense</td><td>&lt;1 %</td>" in page
    assert '<h3 id="s1">Parts</h3>\n<ul>\n<li>one</li>\n<li>two</li>\n</ul>' in page
    assert '<p class="banner">Not a benchmark.</p>' in page


def test_pictures_and_videos_are_inside_the_page() -> None:
    page = html_page("Results", "", SECTIONS)
    found = re.findall(r'<(img|video)[^>]* src="data:([a-z0-9/]+);base64,([^"]*)"', page)
    assert [(tag, kind) for tag, kind, _ in found] == [("img", "image/png"), ("video", "video/mp4")]
    assert [base64.b64decode(content) for *_, content in found] == [b"\x89PNG", b"film"]
    assert 'alt="A &lt; B"' in page


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = html_page("Results", "", SECTIONS)
    assert set(re.findall(r'(?:src|href)="(data:|#|[^"]*)', page)) == {"data:", "#"}
    assert "url(" not in page
    assert "http" not in page


def test_links_lead_to_the_sections_of_the_first_level() -> None:
    page = html_page("Results", "", SECTIONS)
    assert re.findall(r'<a href="#(s\d)">', page) == ["s0", "s2"]


def test_colours_follow_the_reader_and_pictures_stay_on_white() -> None:
    page = html_page("Results", "", SECTIONS)
    assert "@media (prefers-color-scheme: dark)" in page
    assert re.search(r"img, video \{[^}]*background: #ffffff", page)


def test_markdown_shows_plots_as_files() -> None:
    plot = Media(b"<svg/>", "image/svg+xml", "Wall, lite: result against K")
    sections = [Section("Trade-offs", ["Bars.", plot, Media(b"", "image/png", "A sheet")])]
    assert markdown_page("Results", "", sections).endswith(
        "## Trade-offs\n\nBars.\n\n![Wall, lite: result against K](plots/wall-lite-result-against-k.svg)\n"
    )
    assert plot_files(sections) == {"wall-lite-result-against-k.svg": b"<svg/>"}


def test_markdown_has_the_tables_and_leaves_pictures_out() -> None:
    assert markdown_page("Results", "Not a benchmark.", SECTIONS) == (
        "# Results\n\n**Not a benchmark.**\n\n## K < N & more\n\nSee `data` & so on.\n\n"
        "| model | solved |\n| --- | ---: |\n| dense | <1 % |\n\n### Parts\n\n- one\n- two\n"
    )
