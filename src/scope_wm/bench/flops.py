"""FLOPs, counted while a model of random weights computes; a multiplication and an addition are two."""

from collections.abc import Callable

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from scope_wm.bench.subject import random_model
from scope_wm.model.architecture import ModelConfig


def counted_gflops(compute: Callable[[], object]) -> float:
    """Return the GFLOPs of all matrix products and convolutions that a call makes."""
    # The counter has no formula for the processor's fused attention; the math backend is plain products.
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH), torch.no_grad():
        compute()
    return counter.get_total_flops() / 1e9


def prediction_gflops(config: ModelConfig) -> float:
    """Return the GFLOPs of one prediction, on all frames that a model sees, for one candidate."""
    model = random_model(config)
    tokens = torch.zeros(1, config.history, config.tokens.num_tokens, config.tokens.width)
    return counted_gflops(lambda: model(tokens, model.select_window(tokens)))
