"""How fast this machine multiplies matrices: the yardstick for every other speed."""

import time

import torch

SIZE = 2048
ROUNDS = 10


def gemm_rate(device: torch.device) -> float:
    """Return the best float32 rate of ten products of 2048 x 2048 matrices, in GFLOP/s."""
    left, right = torch.rand(2, SIZE, SIZE, device=device)
    times = []
    for _ in range(ROUNDS):
        synchronize(device)
        start = time.perf_counter()
        torch.mm(left, right)
        synchronize(device)
        times.append(time.perf_counter() - start)
    return 2 * SIZE**3 / min(times) / 1e9


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all that it was asked."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()
