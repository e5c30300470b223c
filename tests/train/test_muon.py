from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scope_wm.model.transformer import Transformer, TransformerConfig
from scope_wm.train.loop import Fit, FitSettings, OptimiserSettings, optimiser_of
from scope_wm.train.muon import Muon, orthogonalised, transformer_matrices
from scope_wm.train.recorder import RunSettings
from scope_wm.types import UsageError

SIZES = TransformerConfig(depth=2, heads=2, head_width=4, mlp_width=16, dropout=0.0)
RATE, DECAY = 1e-2, 0.1


class Sequences(nn.Module):
    """A transformer that learns to turn sequences around; what is drawn is the same for everyone."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.transformer = Transformer(8, SIZES)
        self.output = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return (self.output(self.transformer(x)) - x.flip(1)).square().mean()

    def __len__(self) -> int:
        return 64

    def batch(self, rows: np.ndarray) -> tuple[Tensor, ...]:
        drawn = (torch.randn(3, 8, generator=torch.Generator().manual_seed(row)) for row in rows.tolist())
        return (torch.stack(list(drawn)),)


def stepped(model: Sequences, optimisers: list[torch.optim.Optimizer], steps: int = 3) -> Sequences:
    for step in range(steps):
        model(*model.batch(np.arange(8 * step, 8 * step + 8))).backward()
        for optimiser in optimisers:
            optimiser.step()
            optimiser.zero_grad()
    return model


@pytest.mark.parametrize("shape", [(84, 128), (384, 84), (64, 64)])
def test_orthogonalised_directions_stay_and_singular_values_become_about_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.linspace(1, 5, shape[1])
    u, s, v = torch.linalg.svd(matrix, full_matrices=False)
    directions = u.T @ orthogonalised(matrix) @ v.T
    kept = directions.diagonal()[s > 0.05 * s.max()]
    assert kept.min() > 0.6
    assert kept.max() < 1.3
    assert (directions - directions.diagonal().diag()).abs().max() < 1e-4
    torch.testing.assert_close(orthogonalised(1000 * matrix), orthogonalised(matrix), rtol=1e-3, atol=1e-4)


def test_a_gradient_of_zero_moves_nothing() -> None:
    assert torch.equal(orthogonalised(torch.zeros(3, 5)), torch.zeros(3, 5))


def test_without_matrices_it_is_adamw() -> None:
    mine, plain = Sequences(), Sequences()
    stepped(mine, [Muon(list(mine.parameters()), [], lr=RATE, weight_decay=DECAY)])
    stepped(plain, [torch.optim.AdamW(plain.parameters(), lr=RATE, weight_decay=DECAY)])
    assert all(torch.equal(a, b) for a, b in zip(mine.parameters(), plain.parameters(), strict=True))


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="older versions of PyTorch have none")
def test_it_equals_the_muon_of_pytorch_beside_adamw_to_the_rounding_of_bfloat16() -> None:
    mine, plain = Sequences(), Sequences()
    stepped(mine, [Muon(list(mine.parameters()), transformer_matrices(mine), lr=RATE, weight_decay=DECAY)])
    matrices = transformer_matrices(plain)
    others = [p for p in plain.parameters() if all(p is not matrix for matrix in matrices)]
    adamw = torch.optim.AdamW(others, lr=RATE, weight_decay=DECAY)
    # PyTorch's step has 0.2 of our length at the same rate; its decay is as long.
    muon = torch.optim.Muon(
        matrices, lr=5 * RATE, weight_decay=DECAY / 5, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    stepped(plain, [muon, adamw])
    start = dict(Sequences().named_parameters())
    theirs = dict(plain.named_parameters())
    for name, weight in mine.named_parameters():
        moved, expected = (weight - start[name]).flatten(), (theirs[name] - start[name]).flatten()
        assert torch.cosine_similarity(moved, expected, dim=0) > 0.99, name
        assert moved.norm().item() == pytest.approx(expected.norm().item(), rel=0.05), name


def test_only_trained_weights_of_transformers_are_its_matrices() -> None:
    model = Sequences()
    assert len(transformer_matrices(model)) == 4 * SIZES.depth
    model.transformer.mlp.requires_grad_(False)
    assert len(transformer_matrices(model)) == 2 * SIZES.depth
    assert transformer_matrices(model.output) == []


def test_it_is_refused_where_there_is_no_transformer() -> None:
    with pytest.raises(UsageError, match="muon is for models with a transformer"):
        optimiser_of(OptimiserSettings(kind="muon", lr=RATE), Sequences().output)


def test_a_training_with_muon_learns_and_goes_on_where_it_broke_off(tmp_path: Path) -> None:
    how = OptimiserSettings(kind="muon", lr=RATE, ema=0.9)
    settings = FitSettings(optimiser=how, epochs=10, batch=16, validations=2)

    def training(name: str, settings: FitSettings = settings) -> Fit:
        model = Sequences()
        (tmp_path / name).mkdir(exist_ok=True)
        return Fit(
            loss=model,
            samples=model,
            settings=settings,
            validate=lambda: {"error": model(*model.batch(np.arange(100, 116))).item()},
            best="error",
            directory=tmp_path / name,
            run=RunSettings(device="cpu", checkpoint_seconds=0.0),
        )

    whole, before = training("whole"), training("whole").validate()["error"]
    assert whole()["error"] < 0.9 * before
    training("broken", FitSettings(optimiser=how, epochs=3, batch=16, validations=1))()
    resumed = training("broken")
    assert resumed()["error"] == whole.validate()["error"]
    pairs = zip(whole.loss.parameters(), resumed.loss.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
