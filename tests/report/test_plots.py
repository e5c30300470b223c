import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scope_wm.report.evaluated import Evaluated, Setup, scope
from scope_wm.report.ours import Ours
from scope_wm.report.plots import (
    Shown,
    draw_budget,
    draw_memory,
    draw_planners,
    draw_time,
    groups,
    height,
    is_method,
    is_usual,
    on_common_instances,
    plot,
    plots,
)

Make = Callable[..., Evaluated]


def shown(*found: Evaluated) -> Shown:
    (group,) = groups(Ours(found=list(found))).values()
    return group


def drawn(draw: Callable[[Axes, Shown], None], *found: Evaluated) -> Axes:
    axes = Figure().subplots()
    draw(axes, shown(*found))
    return axes


def legend(axes: Axes) -> list[str]:
    return axes.get_legend_handles_labels()[1]


def three(evaluated: Make, task: str = "push_t") -> list[Evaluated]:
    return [
        evaluated(task, k=196, planner="cem", solved=50, seconds=10.0, memory=2**30),
        evaluated(task, k=32, planner="cem", solved=40, seconds=2.0),
        evaluated(task, k=32, planner="eb-cem", solved=45, seconds=3.0),
    ]


def test_every_plot_with_something_to_compare_is_drawn(evaluated: Make) -> None:
    made = plots(Ours(found=three(evaluated)))
    assert [media.caption for media in made] == [
        "push_t, lite: result against plan time",
        "push_t, lite: result against peak memory",
        "push_t, lite: result against the tokens kept",
        "push_t, lite, K = 32: result against plan time, by planner",
    ]
    for media in made:
        assert ET.fromstring(media.content).tag == "{http://www.w3.org/2000/svg}svg"
    assert plots(Ours(found=three(evaluated)[:1])) == []


def test_the_same_evaluations_make_the_same_files(evaluated: Make) -> None:
    first, second = (plots(Ours(found=three(evaluated))) for _ in range(2))
    assert first == second


def test_memory_that_was_not_measured_is_not_drawn(evaluated: Make) -> None:
    unmeasured = [evaluated(k=k, memory=None) for k in (32, 98)]
    assert not any("memory" in media.caption for media in plots(Ours(found=unmeasured)))


def test_what_was_not_made_alike_does_not_share_a_plot(
    evaluated: Make, refined: Callable[[Evaluated], Evaluated]
) -> None:
    wall, other, another = evaluated("wall"), evaluated(), evaluated()
    for one, history in ((other, 2), (another, 3)):
        assert one.header is not None
        one.header["model"]["history"] = history
    assert list(groups(Ours(found=[evaluated(), wall, other]))) == [
        "push_t, lite",
        "wall, lite",
        "push_t, own",
    ]
    assert list(groups(Ours(found=[evaluated(), refined(evaluated())]))) == [
        "push_t, lite",
        "push_t, lite, refined",
    ]
    found = [evaluated(), evaluated(k=98, cores=8), evaluated(max_steps=1), other, another]
    assert list(groups(Ours(found=found))) == [
        "push_t, lite, machine 1",
        "push_t, lite, machine 2",
        "push_t, lite, machine 1, max steps 1",
        "push_t, own sizes 1, machine 1",
        "push_t, own sizes 2, machine 1",
    ]
    assert plots(Ours(found=found)) == []


def test_ablations_are_left_to_the_tables() -> None:
    assert is_method(scope("wall", 32))
    assert is_method(scope("wall", 196, selector="every-token", background="copy"))
    assert not is_method(scope("wall", 32, selector="random"))
    assert not is_method(scope("wall", 32, background="copy"))
    assert not is_method(Setup(task="wall", trained_k=98, k=32))
    assert is_usual(scope("wall", 32))
    assert not is_usual(scope("wall", 32, samples=(600, 200)))
    assert not is_usual(scope("wall", 32, planner="cem", samples=(300, 100)))
    assert is_usual(scope("wall", 32, planner="cem", samples=(100, 100)))
    assert not is_usual(scope("wall", 32, planner="icem", samples=None))


def test_points_are_where_their_evaluations_are(evaluated: Make) -> None:
    axes = drawn(draw_time, *three(evaluated))
    points = {tuple(line.get_xydata()[0]) for line in axes.lines if line.get_marker() in "os"}
    assert points == {(10.0, 100.0), (2.0, 80.0), (3.0, 90.0)}
    assert legend(axes) == ["K = 32, cem 100/100", "K = 32, eb-cem 300/100", "dense, cem 100/100"]
    low, high = axes.get_xlim()
    assert (low, high > 10) == (0, True)


def test_the_budget_is_drawn_beside_the_papers_on_push_t_only(evaluated: Make) -> None:
    axes = drawn(draw_budget, *(evaluated(k=k, solved=s) for k, s in ((98, 45), (32, 40))))
    curves = [line.get_xydata() for line in axes.lines if len(line.get_xdata()) > 1]
    np.testing.assert_array_equal(curves[0], [[32, 80], [98, 90]])
    np.testing.assert_array_equal(curves[1], [[196, 90], [98, 94], [32, 88]])
    assert "paper, its own models" in legend(axes)
    assert "paper, its own models" not in legend(drawn(draw_budget, *three(evaluated, "wall")))


def test_planners_form_one_curve_by_their_time(evaluated: Make) -> None:
    found = [
        evaluated(planner="icem", solved=30, seconds=4.0),
        evaluated(planner="cem", samples=200, elites=20, solved=40, seconds=1.0),
    ]
    axes = drawn(draw_planners, *found)
    np.testing.assert_array_equal(axes.lines[0].get_xydata(), [[1, 80], [4, 60]])
    assert legend(axes) == ["cem 200/200", "icem"]


def test_a_plot_compares_on_the_instances_that_all_have(evaluated: Make) -> None:
    long, short = evaluated(k=98, solved=45, seconds=4.0), evaluated(k=32, solved=40)
    first = {i: record for i, record in short.run.records.items() if i < 10}
    part = replace(short, run=replace(short.run, records=first))
    cut = [one for _, one in on_common_instances(shown(long, part))]
    assert [list(one.run.records) for one in cut] == [list(range(10))] * 2
    kept = [long.run.records[i] for i in range(10)]
    assert height(cut[0])[0] == 10 * sum(record.success for record in kept)
    long.run.records[49] = replace(long.run.records[49], plan_seconds=99.0, peak_memory=2**30)
    for draw in (draw_time, draw_memory, draw_budget):
        assert plot("two", shown(long, part), draw) == plot("two", shown(*cut), draw)
