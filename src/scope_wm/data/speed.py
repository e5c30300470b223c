"""How fast a store feeds training: random windows a second through PyTorch's DataLoader."""

import time

from torch.utils.data import DataLoader, RandomSampler

from scope_wm.data.split import Splits
from scope_wm.data.statistics import statistics
from scope_wm.data.windows import Windows, frame_numbers

HISTORY = 3  # four frames a window
BATCH = 32
WORKERS = 2


def windows_per_second(splits: Splits, frameskip: int, *, frames: bool, batches: int) -> float:
    """Time random batches of training windows, with or without their frames, from two worker processes."""
    training = splits.training
    windows = Windows(
        training,
        statistics(training),
        history=HISTORY,
        frameskip=frameskip,
        read=training.store.frames if frames else frame_numbers,
    )
    sampler = RandomSampler(windows, replacement=True, num_samples=(batches + 1) * BATCH)
    reader = iter(DataLoader(windows, batch_size=BATCH, sampler=sampler, num_workers=WORKERS))
    next(reader)  # the workers have started
    began = time.perf_counter()
    for _ in reader:
        pass
    return batches * BATCH / (time.perf_counter() - began)
