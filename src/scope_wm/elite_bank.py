"""Elite-bank CEM (EB-CEM): a wide first search fills a bank that later, smaller searches perturb.

At MPC step 0, CEM has many samples; the bank is the M cheapest candidates of its last iteration, and is never
changed. At later steps most candidates come from around the bank, the rest from the current Gaussian:

    A_j = bank[m_j] + 0.5 sigma * noise,  m_j uniform        j < floor(0.7 S)        local
    A_j = mu + sigma * noise                                 otherwise               global

CEM then sets candidate 0 to mu. EB-CEM is CEM with this proposal; who plans step after step holds the bank.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

import torch
from jaxtyping import Float, Int
from torch import Tensor

from scope_wm.planning.cem import CEMSettings, gaussian
from scope_wm.planning.search import Plan, lowest_in_turn, moved, normal, taken

FIRST_STEP = CEMSettings(samples=300, elites=30)
LATER_STEPS = CEMSettings(samples=100, elites=10)
BANK_SIZE = 30
LOCAL_SHARE = 0.7


@dataclass(frozen=True, kw_only=True)
class EliteBank:
    """Good action sequences of each problem, and how later candidates are drawn from around them."""

    sequences: Float[Tensor, "B M L A"]
    local_share: float = LOCAL_SHARE
    local_scale: float = 0.5

    @staticmethod
    def fill(plan: Plan, size: int = BANK_SIZE, local_share: float = LOCAL_SHARE) -> "EliteBank":
        """Keep the cheapest candidates of a search's last iteration.

        One that costs NaN is never kept: where there are not enough others, they are kept in turn.
        """
        kept = taken(plan.candidates, lowest_in_turn(plan.costs, size))
        return EliteBank(sequences=kept, local_share=local_share)

    def of(self, problems: Int[Tensor, " rows"]) -> "EliteBank":
        """Return the bank of some of the problems: it follows them when others are solved."""
        return EliteBank(
            sequences=self.sequences[problems], local_share=self.local_share, local_scale=self.local_scale
        )

    def __call__(
        self,
        mean: Float[Tensor, "B L A"],
        std: Float[Tensor, "B L A"],
        count: int,
        generators: Sequence[torch.Generator],
    ) -> Float[Tensor, "B S L A"]:
        """Draw local candidates, then global ones; a problem draws indices, local noise, global noise."""
        size = self.sequences.shape[1]
        local = floor(round(self.local_share * count, 6))  # in floating point, 0.7 * 90 is less than 63
        drawn = [torch.randint(size, (local,), generator=g, device=g.device) for g in generators]
        around = taken(self.sequences, moved(torch.stack(drawn), mean.device))
        noise = normal(generators, (local, *mean.shape[1:]), mean)
        near = around + self.local_scale * std.unsqueeze(1) * noise
        return torch.cat([near, gaussian(mean, std, count - local, generators)], dim=1)
