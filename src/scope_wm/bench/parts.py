"""What the time of imagining goes to: timers around the parts from outside, none inside the algorithms."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from scope_wm.background import ForegroundDelta
from scope_wm.bench.plan_variants import VariantCost
from scope_wm.model.fast_rollout import SplitDelta
from scope_wm.model.predictor import Predictor
from scope_wm.model.window import Window
from scope_wm.model.world_model import WorldModel

# None of these calls another: no time is counted twice.
PARTS: dict[str, tuple[tuple[type, str], ...]] = {
    "encode": ((VariantCost, "encode"),),
    "select": ((WorldModel, "select"),),
    "predict": ((Predictor, "forward"), (Window, "predict")),
    "background": ((ForegroundDelta, "forward"), (SplitDelta, "__call__")),
    "cost": ((VariantCost, "compare"),),
}


@contextmanager
def part_timers() -> Iterator[dict[str, float]]:
    """Yield the seconds spent in each part, which grow until the end."""
    spent = dict.fromkeys(PARTS, 0.0)
    with ExitStack() as restore:
        for part, methods in PARTS.items():
            for owner, name in methods:
                original = getattr(owner, name)
                restore.callback(setattr, owner, name, original)
                setattr(owner, name, with_timer(original, part, spent))
        yield spent


def with_timer(work: Callable[..., Any], part: str, spent: dict[str, float]) -> Callable[..., Any]:
    """Return the same work, adding its seconds to a part."""

    def timed(*arguments: Any, **options: Any) -> Any:
        began = time.perf_counter()
        result = work(*arguments, **options)
        spent[part] += time.perf_counter() - began
        return result

    return timed
