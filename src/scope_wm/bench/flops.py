"""FLOPs, counted on tensors without content; a multiplication and an addition are two."""

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def counted_gflops(compute: Callable[[], object]) -> float:
    """Return the GFLOPs of all matrix products and convolutions that a call makes."""
    # The counter has no formula for the processor's fused attention; the math backend is plain products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        compute()
    return counter.get_total_flops() / 1e9
