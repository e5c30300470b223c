import sys

import numpy as np
import pytest
import torch

from scope_wm.evaluate.memory import PeakMemory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")
MIB = 2**20


def test_a_peak_is_seen_after_it_is_over_and_forgotten_after_a_restart() -> None:
    memory = PeakMemory(torch.device("cpu"))
    memory.restart()
    np.ones(64 * MIB, np.uint8)
    peak = memory.peak()
    assert peak is not None
    assert 60 * MIB < peak < 80 * MIB
    memory.restart()
    after = memory.peak()
    assert after is not None
    assert after < 20 * MIB
