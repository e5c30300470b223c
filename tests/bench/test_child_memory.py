import sys

import pytest

from scope_wm.bench.child_memory import peak_memory
from scope_wm.bench.plan import Chunk, to_weigh
from scope_wm.bench.plan_variants import PLAIN_A
from scope_wm.bench.subject import Subject

MIB = 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the peak of a process")
def test_the_memory_of_a_holds_the_scores_of_attention() -> None:
    chunk = Chunk(subject=Subject(task="wall", preset="tiny"), variant=PLAIN_A, size=100)
    peak = peak_memory(to_weigh, chunk, 1)
    assert peak is not None
    scores = 100 * 2 * 196 * 196 * 4  # candidates, heads, pairs, bytes
    assert 2 * scores < peak < 2 * scores + 200 * MIB
