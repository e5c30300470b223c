"""The README's figures are those of the committed benchmark."""

import json
import re
from pathlib import Path

from scope_wm.bench.plan_page import ratio_text
from scope_wm.bench.plan_results import Row
from scope_wm.bench.plan_variants import FAST, PLAIN_A, PLAIN_B
from scope_wm.records import from_json

ROOT = Path(__file__).parents[2]
BENCHMARK = ROOT / "docs" / "benchmarks" / "plan-push_t-paper.json"
SHOWN = {"dense, CEM": (0, "cem"), "K = 98, EB-CEM": (1, "eb-cem"), "K = 32, EB-CEM": (2, "eb-cem")}

ROUNDS = {1: "one round", 2: "two rounds", 3: "three rounds"}


def test_speed_and_memory_are_those_that_were_measured() -> None:
    content = json.loads(BENCHMARK.read_text())
    rows = [from_json(Row, row, BENCHMARK.name) for row in content["rows"]]
    measured = {(row.variant, row.planner): row for row in rows}
    plain = [measured[variant.name, "cem"].peak_memory for variant in (PLAIN_A, PLAIN_B)]
    readme = (ROOT / "README.md").read_text()
    flat = " ".join(readme.split())
    assert f"and {ROUNDS[len(content['rounds'])]}." in flat
    for name, (fast, planner) in SHOWN.items():
        row = measured[FAST[fast].name, planner]
        cells = r"(.*?) \| (.*?) \| (.*?) \| (.*?)"
        told = re.search(rf"^\| {re.escape(name)} \| {cells} \|", readme, re.MULTILINE)
        assert told is not None
        assert row.peak_memory is not None
        assert f"to {row.chunk} candidates at a time" in flat
        shares = [100 * row.peak_memory / peak for peak in plain if peak is not None]
        memory = (f"{shares[0]:.1f} %", f"{shares[1]:.0f} %")
        assert told.groups() == (ratio_text(row.faster_than_a), ratio_text(row.faster_than_b), *memory)
