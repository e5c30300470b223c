import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from scope_wm.planning.load import ModelSettings
from scope_wm.planning.memory import fair_share, parse_bytes
from scope_wm.types import UsageError

# In a process of its own: what others have freed and kept would hide what a rollout takes.
MEASURE = """
import sys, torch
from functools import partial
from scope_wm.background import ForegroundDelta
from scope_wm.evaluate.memory import PeakMemory
from scope_wm.model.predictor import Predictor
from scope_wm.model.fast_rollout import bytes_to_imagine, last_imagined
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import Fuse, TokenConfig, WorldModel
from scope_wm.planning.side_by_side import SideBySide
from scope_wm.selector import DistilledSelector, RelevanceHead

k, horizon, depth, multiplier, count, threads = map(int, sys.argv[1:])
torch.set_num_threads(threads)
fuse = Fuse(TokenConfig(proprio=4, action=10))
predictor = Predictor(width=404, num_tokens=196, history=3, transformer=TransformerConfig(depth=depth))
selector = DistilledSelector(RelevanceHead(visual=384, embedding=10), k)
model = WorldModel(fuse, predictor, selector, ForegroundDelta(404, hidden_multiplier=multiplier)).eval()

imagined = SideBySide(partial(last_imagined, model))


@torch.no_grad()
def imagine(count):
    imagined(torch.ones(count, 196, 384), torch.ones(count, 4), torch.ones(count, horizon, 10))


imagine(1)
memory = PeakMemory(torch.device("cpu"))
memory.restart()
imagine(count)
print(memory.peak() / (count * bytes_to_imagine(model)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")
@pytest.mark.parametrize(
    ("k", "horizon", "depth", "multiplier"), [(98, 4, 2, 2), (32, 2, 6, 2), (196, 2, 1, 2), (32, 2, 2, 6)]
)
@pytest.mark.parametrize(("count", "threads"), [(10, 1), (20, 2)])  # as a whole, and in parts side by side
def test_a_rollout_takes_about_what_is_estimated(
    k: int, horizon: int, depth: int, multiplier: int, count: int, threads: int
) -> None:
    command = [sys.executable, "-c", MEASURE, *map(str, (k, horizon, depth, multiplier, count, threads))]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 0.5 < float(shown.stdout) < 1.0


@pytest.mark.parametrize(
    ("text", "expected"),
    [("2GB", 2 * 10**9), ("512MiB", 2**29), ("1.5 GiB", 3 * 2**29), ("800kb", 800_000), ("7B", 7)],
)
def test_bytes_are_written_as_people_do(text: str, expected: int) -> None:
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["2", "GB", "-1GB", "2 G", "two GB", "1e3MB"])
def test_what_is_not_bytes_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected bytes, such as 2GB"):
        parse_bytes(text)


def test_the_share_of_a_gpu_is_half_of_all_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(total_memory=80))
    assert fair_share(torch.device("cuda")) == 40
    assert fair_share(torch.device("cuda"), processes=4) == 10


def test_a_gpu_is_used_if_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    learned, simulator = ModelSettings(model="runs/model"), ModelSettings(model="simulator")
    for present, expected in ((True, "cuda"), (False, "cpu")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda present=present: present)
        assert learned.resolved_device().type == expected
        assert simulator.resolved_device().type == "cpu"


@pytest.mark.parametrize("device", ["cuda:99", "gpu", ""])
def test_a_device_that_is_not_here_is_wrong_usage(device: str) -> None:
    with pytest.raises(UsageError, match=f"expected a device of this machine, got {device}"):
        ModelSettings(model="runs/model", device=device).resolved_device()
    with pytest.raises(UsageError, match="simulator runs on the processor"):
        ModelSettings(model="simulator", device=device)
