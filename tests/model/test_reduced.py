import numpy as np
import pytest
import torch
from torch import Tensor

from scope_wm.model.encoder import Encoder
from scope_wm.model.reduced import PCA, ReducedEncoder, fit_pca
from scope_wm.model.student import Student, StudentConfig, StudentEncoder

SMALL = StudentConfig(dim=16, width=8, stages=1, heads=2)


@pytest.fixture(scope="module")
def encoder() -> StudentEncoder:
    torch.manual_seed(0)
    return StudentEncoder(Student(SMALL))


def images(count: int = 2) -> Tensor:
    return torch.randint(0, 256, (count, 224, 224, 3), generator=torch.Generator().manual_seed(1)).byte()


def correlated(count: int, channels: int) -> np.ndarray:
    rng = np.random.default_rng(3)
    mixing = rng.normal(size=(channels, channels)) * np.linspace(3, 0.1, channels)[:, None]
    return (rng.normal(size=(count, channels)) @ mixing + rng.normal(size=channels)).astype(np.float32)


def test_pca_agrees_with_the_svd_of_numpy() -> None:
    tokens = correlated(500, 8)
    pca = fit_pca([torch.from_numpy(tokens)], 3)
    centred = tokens.astype(np.float64) - tokens.mean(0, dtype=np.float64)
    left, values, right = np.linalg.svd(centred, full_matrices=False)
    reduced = left[:, :3] * values[:3]
    reduced *= np.sign(right[np.arange(3), np.abs(right[:3]).argmax(1)])
    reduced /= np.sqrt((reduced**2).mean())  # the mean variance of the channels is one
    np.testing.assert_allclose(pca(torch.from_numpy(tokens)), reduced, atol=2e-5)
    assert float(pca.explained) == pytest.approx((values[:3] ** 2).sum() / (values**2).sum(), rel=1e-5)


def test_pca_in_batches_equals_pca_at_once() -> None:
    tokens = torch.from_numpy(correlated(600, 8)).reshape(50, 12, 8)
    whole, parts = fit_pca([tokens], 4), fit_pca(tokens.split(7), 4)
    torch.testing.assert_close(parts.components, whole.components, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(parts.mean, whole.mean, atol=1e-6, rtol=1e-6)


def test_pca_of_all_channels_keeps_the_proportions_of_distances() -> None:
    tokens = torch.from_numpy(correlated(100, 8))
    pca = fit_pca([tokens], 8)
    ratio = torch.pdist(pca(tokens)) / torch.pdist(tokens)
    assert float(ratio.max() / ratio.min()) == pytest.approx(1, abs=1e-3)
    assert float(pca.explained) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("tokens", "dim", "message"),
    [
        (torch.randn(100, 8), 9, "got d = 9"),
        (torch.randn(100, 8), 0, "got d = 0"),
        (torch.randn(4, 8), 4, "4 tokens"),
        (torch.ones(100, 8), 2, "the same one everywhere"),
    ],
)
def test_pca_refuses_what_it_cannot_fit(tokens: Tensor, dim: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fit_pca([tokens], dim)


def test_pca_refuses_an_empty_dataset() -> None:
    with pytest.raises(ValueError, match="0 tokens"):
        fit_pca([], 2)


def test_a_reduced_encoder_is_the_encoder_and_then_the_pca(encoder: StudentEncoder) -> None:
    reduced = ReducedEncoder(encoder, fit_pca([encoder(images(4))], 5))
    assert isinstance(reduced, Encoder)
    assert (reduced.num_tokens, reduced.dim, reduced.name) == (196, 5, "student-pca5")
    tokens = encoder(images(4)).double()
    expected = (tokens - tokens.mean((0, 1))) @ reduced.pca.components.double()
    torch.testing.assert_close(reduced(images(4)).double(), expected, atol=1e-4, rtol=1e-4)


def test_a_reduced_encoder_runs_where_its_weights_are() -> None:
    encoder = ReducedEncoder(StudentEncoder(Student(SMALL)), PCA(16, 5)).to("meta")
    assert encoder(images().to("meta")).shape == (2, 196, 5)


def test_a_pca_comes_back_from_its_state_and_is_part_of_the_hash(encoder: StudentEncoder) -> None:
    reduced = ReducedEncoder(encoder, fit_pca([encoder(images())], 5))
    again = ReducedEncoder(encoder, PCA(16, 5))
    assert again.digest() != reduced.digest()
    again.pca.load_state_dict(reduced.pca.state_dict())
    assert again.digest() == reduced.digest() != encoder.digest()
    assert torch.equal(again(images()), reduced(images()))


def test_nothing_of_a_reduced_encoder_is_trained(encoder: StudentEncoder) -> None:
    reduced = ReducedEncoder(encoder, fit_pca([encoder(images())], 5)).train()
    assert not any(parameter.requires_grad for parameter in reduced.parameters())
    assert not reduced(images()).requires_grad


def test_a_pca_of_another_width_is_refused(encoder: StudentEncoder) -> None:
    with pytest.raises(ValueError, match="expected a PCA of 16 channels, got one of 8"):
        ReducedEncoder(encoder, PCA(8, 4))
