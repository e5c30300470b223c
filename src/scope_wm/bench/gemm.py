"""How fast this machine multiplies matrices: the yardstick for every other speed."""

import time

import torch

from scope_wm.planning.search import wait_for

SIZE = 2048
ROUNDS = 10


def gemm_rate(device: torch.device) -> float:
    """Return the best float32 rate of ten products of 2048 x 2048 matrices, in GFLOP/s."""
    left, right = torch.rand(2, SIZE, SIZE, device=device)
    times = []
    for _ in range(ROUNDS):
        wait_for(device)
        start = time.perf_counter()
        torch.mm(left, right)
        wait_for(device)
        times.append(time.perf_counter() - start)
    return 2 * SIZE**3 / min(times) / 1e9
