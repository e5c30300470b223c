import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from scope_wm.bench.child_memory import peak_memory
from scope_wm.bench.scaling import ScalingJob, imagining, to_weigh
from scope_wm.bench.scaling_results import Measurement, Sizes, exponent, growth
from scope_wm.bench.subject import Subject, random_model
from scope_wm.cli import main
from scope_wm.model.fast_rollout import bytes_to_imagine

GRIDS = {"K": (2, 4, 8), "S": (1, 2, 4), "L": (1, 2, 4), "H": (1, 2, 3), "N": (36, 49, 64)}
SMALL = Sizes(k=4, s=3, horizon=2, history=2, n=9)
JOB = ScalingJob(subject=Subject(task="wall", preset="tiny"), sizes=SMALL, channels=8, chunk=2)


def test_the_exponent_of_a_power_is_found() -> None:
    values = [1, 2, 5, 9]
    assert exponent(values, [7.0 * value**1.5 for value in values]) == pytest.approx(1.5)
    assert exponent(values, [3.0] * 4) == pytest.approx(0.0)


def test_every_size_has_its_own_growth() -> None:
    measured = [
        Measurement(axis=axis, value=value, seconds=value**power, memory=None if axis == "K" else 10 * value)
        for axis, power in (("K", 2.0), ("S", 1.0))
        for value in (1, 2, 4)
    ]
    time_and_memory = [(fit.axis, fit.seconds, fit.memory) for fit in growth(measured)]
    assert time_and_memory == [("K", pytest.approx(2.0), None), ("S", pytest.approx(1.0), pytest.approx(1.0))]


def test_candidates_are_imagined_chunk_by_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    from scope_wm.bench import scaling

    sizes, imagined = [], scaling.last_imagined

    def counting(*arguments):
        sizes.append(arguments[-1].shape)
        return imagined(*arguments)

    monkeypatch.setattr(scaling, "last_imagined", counting)
    imagining(JOB)(3)
    assert sizes == [(2, 2, 10), (1, 2, 10)]


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")
def test_memory_is_measured_in_a_process_of_its_own() -> None:
    job = replace(JOB, sizes=replace(JOB.sizes, s=2000), chunk=2000)
    peak = peak_memory(to_weigh, job, 1)
    config = replace(job.subject.config(job.sizes.k, job.sizes.n, job.channels), history=job.sizes.history)
    expected = 2000 * bytes_to_imagine(random_model(config))
    assert peak is not None
    assert 0.3 * expected < peak < 1.2 * expected


def test_the_command_writes_page_json_and_plot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "scope_wm.bench.scaling.peak_memory", lambda prepare, job, threads: 1000 * job.sizes.k
    )
    monkeypatch.setattr("scope_wm.bench.scaling.GRIDS", GRIDS)
    page = tmp_path / "benchmarks.md"
    options = "--task wall --preset tiny --points 2 --repeats 1 --chunk 1 --threads 1"
    assert main(["bench", "scaling", *options.split(), "--out", str(page)]) == 0
    text = page.read_text()
    assert "## Growth of the fast rollout: wall, tiny sizes" in text
    assert "K = 32, S = 1," in text
    assert "| K^1.00 |" in text  # of the memory made up above
    content = json.loads((tmp_path / "benchmarks" / "scaling-wall-tiny.json").read_text())
    points = [(point["axis"], point["value"]) for point in content["measured"]]
    assert points == [(axis, value) for axis, grid in GRIDS.items() for value in grid[:2]]
    assert (tmp_path / "benchmarks" / "scaling-wall-tiny.png").stat().st_size > 10_000
