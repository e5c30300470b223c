"""The planners by name: each plans one step of model predictive control for all problems at once.

A planner gets the bank that its first step filled and gives it back; only EB-CEM has one. That way the loop
holds all memory, and a planner is a value.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol, runtime_checkable

import torch

from scope_wm.elite_bank import BANK_SIZE, FIRST_STEP, LATER_STEPS, LOCAL_SHARE, EliteBank
from scope_wm.planning.cem import CEMSettings, cem
from scope_wm.planning.gradient import GradientSettings, gradient
from scope_wm.planning.icem import ICEMSettings, icem
from scope_wm.planning.mppi import MPPISettings, mppi
from scope_wm.planning.random_shooting import random_shooting
from scope_wm.planning.search import Cost, Gaussian, Limits, OnIteration, Plan

Generators = Sequence[torch.Generator]


@runtime_checkable
class StepPlanner(Protocol):
    """Plan one step; `bank` is None at the first."""

    def __call__(
        self,
        cost: Cost,
        start: Gaussian,
        generators: Generators,
        bank: EliteBank | None,
        *,
        limits: Limits | None = None,
        on_iteration: OnIteration | None = None,
    ) -> tuple[Plan, EliteBank | None]:
        """Return the plan, and the bank for the steps to come."""
        ...


@dataclass(frozen=True, kw_only=True)
class Memoryless:
    """Plan every step alike, with an optimiser that remembers nothing."""

    optimiser: Callable[..., Plan]

    def __call__(
        self,
        cost: Cost,
        start: Gaussian,
        generators: Generators,
        bank: EliteBank | None,
        *,
        limits: Limits | None = None,
        on_iteration: OnIteration | None = None,
    ) -> tuple[Plan, EliteBank | None]:
        """Return the plan and no bank."""
        return self.optimiser(cost, start, generators, limits=limits, on_iteration=on_iteration), bank


@dataclass(frozen=True, kw_only=True)
class EliteBankCEM:
    """Search widely at the first step and fill the bank; later, search less, around it.

    With a `local_share` of 0 nothing is drawn from around the bank: that is CEM with another first step.
    """

    first: CEMSettings = FIRST_STEP
    later: CEMSettings = LATER_STEPS
    bank_size: int = BANK_SIZE
    local_share: float = LOCAL_SHARE

    def __call__(
        self,
        cost: Cost,
        start: Gaussian,
        generators: Generators,
        bank: EliteBank | None,
        *,
        limits: Limits | None = None,
        on_iteration: OnIteration | None = None,
    ) -> tuple[Plan, EliteBank | None]:
        """Return the plan and the bank, which only the first step makes.

        If it is out of time before its first iteration is complete, there is no bank, and the next step is
        as the first.
        """
        if bank is None:
            plan = cem(cost, start, generators, self.first, limits=limits, on_iteration=on_iteration)
            complete = len(plan.trace) > 0
            return plan, EliteBank.fill(plan, self.bank_size, self.local_share) if complete else None
        plan = cem(
            cost, start, generators, self.later, proposal=bank, limits=limits, on_iteration=on_iteration
        )
        return plan, bank


PLANNERS: dict[str, StepPlanner] = {
    "cem": Memoryless(optimiser=partial(cem, settings=CEMSettings())),
    "eb-cem": EliteBankCEM(),
    "icem": Memoryless(optimiser=partial(icem, settings=ICEMSettings())),
    "mppi": Memoryless(optimiser=partial(mppi, settings=MPPISettings())),
    "gradient": Memoryless(optimiser=partial(gradient, settings=GradientSettings())),
    "random-shooting": Memoryless(optimiser=random_shooting),
}
