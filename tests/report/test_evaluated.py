import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scope_wm.report.evaluated import (
    Evaluated,
    Setup,
    dense,
    is_evaluation,
    preset_of,
    preset_text,
    read_evaluations,
    scope,
)

SIMULATED = Path(__file__).parents[2] / "docs" / "results" / "simulator"

Make = Callable[..., Evaluated]


def test_the_setup_is_read_from_the_configs(evaluated: Make) -> None:
    assert evaluated().setup == scope("push_t", 32)
    assert evaluated(k=196, planner="cem").setup == dense("push_t")
    assert evaluated("wall", k=98, planner="cem", samples=200).setup == Setup(
        task="wall",
        selector="distilled",
        background="foreground-delta",
        trained_k=98,
        k=98,
        planner="cem",
        samples=(200, 200),
    )
    assert evaluated(samples=50, elites=5).setup == scope("push_t", 32, samples=(150, 50))
    assert evaluated(planner="icem").setup == scope("push_t", 32, planner="icem", samples=None)


def test_the_first_step_may_have_other_samples(evaluated: Make) -> None:
    def samples(**search: Any) -> tuple[int, int] | None:
        setup = evaluated(**search).setup
        assert setup is not None
        return setup.samples

    assert samples(planner="cem", first_samples=300) == (300, 100)
    assert samples(planner="cem", samples=300, elites=30, first_samples=100) == (100, 300)
    assert samples(planner="eb-cem", first_samples=200) == (200, 100)
    assert samples(planner="icem") is None


def test_another_k_than_in_training_is_another_setup(evaluated: Make) -> None:
    one = evaluated()
    one.run.config["settings"]["k"] = 98
    assert one.setup == Setup(task="push_t", trained_k=32, k=98)


def test_a_result_has_its_interval_and_the_protocol_comes_first(evaluated: Make) -> None:
    assert evaluated(solved=44).result() == "88.0 % (76.2 to 94.4 %), 44 of 50"  # Wilson's, by hand
    longer = evaluated(solved=90, count=100)
    assert longer.result() == "100.0 % (92.9 to 100.0 %), 50 of 50; 90.0 % (82.6 to 94.5 %), 90 of 100"


def test_a_task_without_a_rule_of_success_has_a_distance(evaluated: Make) -> None:
    result = evaluated("rope", solved=5, count=10).result()
    assert result.startswith("25.5 (")
    assert result.endswith("), 76 % of the way, 10 instances")  # from 104.5 in the mean


def test_what_differs_from_the_protocol_is_told(evaluated: Make) -> None:
    assert evaluated().deviations() == []
    told = evaluated(horizon=2, max_steps=1, samples=100, elites=20).deviations()
    assert told == ["elites 20", "horizon 2", "max steps 1"]
    assert evaluated(samples=200, elites=20).deviations() == []
    assert evaluated(samples=200, elites=None).deviations() == ["elites 10"]
    assert evaluated(elites=10, samples=100, max_seconds=2.0).deviations() == ["max seconds 2.0"]
    assert evaluated(chunk=7, max_memory="2GB").deviations() == ["chunk 7", "max memory 2GB"]
    one = evaluated()
    one.run.config["settings"].update(
        alpha=0.5, seed=3, problems_from="data", max_seconds=2.0, precision="int8"
    )
    assert set(one.deviations()) == {
        "alpha 0.5",
        "precision int8",
        "max seconds 2.0",
        "seed 3",
        "problems from a store",
    }


def test_an_evaluation_that_is_older_than_an_option_had_its_default(evaluated: Make) -> None:
    one = evaluated()
    del one.run.config["settings"]["precision"]
    assert one.deviations() == []


def test_a_preset_is_known_by_sizes_and_training(evaluated: Make) -> None:
    for k in (32, 196):
        header = evaluated(k=k).header
        assert header is not None
        assert (preset_of(header), preset_text(header)) == ("lite", "lite")
        header["made"]["settings"]["select_by"] = "planning"
        assert preset_text(header) == "lite sizes"
        header["made"]["settings"]["select_by"] = "rollout"
        assert preset_text(header) == "lite"
        header["made"]["settings"]["fit"]["batch"] += 1
        assert (preset_of(header), preset_text(header)) == (None, "lite sizes")
        header["model"]["history"] = 2
        assert (preset_of(header), preset_text(header)) == (None, "own sizes")


def test_a_refined_model_is_of_a_preset_if_both_trainings_are(
    evaluated: Make, refined: Callable[[Evaluated], Evaluated]
) -> None:
    for k in (32, 196):
        plain = evaluated(k=k)
        one = refined(plain)
        assert (plain.is_refined, one.is_refined, one.preset) == (False, True, "lite")
        assert one.header is not None
        made = one.header["made"]
        assert preset_of(one.header | {"made": made | {"before": None}}) is None
        assert preset_of(one.header | {"made": made | {"settings": made["settings"] | {"frames": 2}}}) is None


def test_evaluations_of_a_run_name_their_model(tiny_run: Path) -> None:
    found = read_evaluations([tiny_run])
    assert [one.settings["planner"] for one in found] == ["cem", "eb-cem"]
    for one in found:
        assert one.directory == tiny_run / "sparse-k32"
        assert one.header == json.loads((tiny_run / "sparse-k32" / "config.json").read_text())
        assert one.setup is not None
        assert (one.setup.selector, one.setup.trained_k) == ("distilled", 32)


def test_a_model_that_was_not_recorded_is_found_by_its_hash(tiny_run: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(tiny_run / "evaluate" / "sparse-k32-cem", alone)
    (recorded,) = read_evaluations([alone])
    assert recorded.directory is None
    assert recorded.setup is not None
    config = json.loads((alone / "config.json").read_text())
    del config["model"]
    (alone / "config.json").write_text(json.dumps(config))
    (unknown,) = read_evaluations([alone])
    assert (unknown.setup, unknown.preset) == (None, "model not recorded")
    assert read_evaluations([alone, tiny_run])[0].setup == recorded.setup


def test_the_simulator_has_no_setup() -> None:
    (one,) = read_evaluations([SIMULATED / "wall"])
    assert (one.setup, one.preset) == (None, "simulator")
    assert one.result() == "100.0 % (92.9 to 100.0 %), 50 of 50"


def test_a_run_is_told_from_an_evaluation(tiny_run: Path) -> None:
    assert is_evaluation(SIMULATED / "wall")
    assert not is_evaluation(tiny_run)
    assert not is_evaluation(tiny_run / "teacher")


@pytest.mark.parametrize("name", ["lite", "paper"])
def test_the_papers_history_is_that_of_the_task(evaluated: Make, name: str) -> None:
    header = evaluated(k=196).header
    assert header is not None
    if name == "paper":
        header["model"] |= {"history": 3, "output": "absolute"}
        header["model"]["encoder"]["config"]["source"] = "wherever/dinov2-small/lies"
        header["model"]["tokens"]["visual"] = 384
        header["model"]["transformer"] = {
            "depth": 6,
            "heads": 16,
            "head_width": 64,
            "mlp_width": 2048,
            "dropout": 0.1,
        }
    assert preset_text(header) == {"lite": "lite", "paper": "paper sizes"}[name]
