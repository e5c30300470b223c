"""An encoder followed by a frozen PCA: V channels to d.

    y = (x - mean) W        W = the d leading eigenvectors of a covariance, times one number

The covariance is that of the tokens, or that of their changes where they are.
That number makes the mean variance of the d channels one, so that losses and costs are of the same size
whatever the encoder. All channels share it, so distances between tokens keep their proportions.
"""

import hashlib
from collections.abc import Iterable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from scope_wm.model.encoder import Encoder, content_hash


class PCA(nn.Module):
    """The projection; `explained` is the share of the variance that it keeps."""

    def __init__(self, channels: int, dim: int) -> None:
        super().__init__()
        self.mean: Tensor
        self.components: Tensor
        self.explained: Tensor
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("components", torch.zeros(channels, dim))
        self.register_buffer("explained", torch.zeros(()))

    def forward(self, tokens: Float[Tensor, "*M V"]) -> Float[Tensor, "*M d"]:
        """Reduce the channels of tokens."""
        return (tokens - self.mean) @ self.components


def fit_pca(batches: Iterable[Float[Tensor, "... V"]], dim: int) -> PCA:
    """Fit a PCA to d channels on tokens that come in batches, in one pass and float64."""
    count, total, square = 0, torch.zeros(()), torch.zeros(())
    for batch in batches:
        tokens = batch.to("cpu", torch.float64).flatten(0, -2)
        count += len(tokens)
        total = total + tokens.sum(0)
        square = square + tokens.T @ tokens
    if count <= dim or dim > len(total) or dim < 1:
        raise ValueError(
            f"expected 1 <= d <= channels and more than d tokens, got d = {dim} and {count} tokens"
        )
    mean = total / count
    covariance = square / count - mean.outer(mean)
    return _pca(mean, covariance, covariance, dim)


def fit_change_pca(scenes: Iterable[Float[Tensor, "F N V"]], dim: int) -> PCA:
    """Fit a PCA to d channels on how tokens of each scene change where they are, all scenes alike.

    Most of the variance of tokens is between the places of a still background, which no model has to predict.
    Here a token counts by its distance from the mean of its scene at its place, and no scene counts more
    than another because more changes in it.
    """
    tokens = [scene.to("cpu", torch.float64) for scene in scenes]
    everything = torch.cat([scene.flatten(0, 1) for scene in tokens])
    changes = [(scene - scene.mean(0)).flatten(0, 1) for scene in tokens]
    if not all(change.any() for change in changes):
        raise ValueError("expected scenes in which something changes, got one of equal frames")
    return _pca(
        everything.mean(0),
        everything.T.cov(correction=0),
        torch.stack([change.T @ change / change.square().sum() for change in changes]).mean(0),
        dim,
    )


def _pca(
    mean: Float[Tensor, " V"], covariance: Float[Tensor, "V V"], wanted: Float[Tensor, "V V"], dim: int
) -> PCA:
    """Return the PCA that keeps the most of the wanted covariance."""
    variance, vectors = torch.linalg.eigh(wanted)  # ascending
    variance, vectors = variance.clamp(min=0).flip(0), vectors.flip(1)[:, :dim]
    spread = torch.trace(vectors.T @ covariance @ vectors) / dim
    if not spread > 0:
        raise ValueError("expected tokens that differ, got the same one everywhere")
    # An eigenvector has no sign of its own: the largest entry is positive.
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    pca = PCA(len(mean), dim)
    pca.mean.copy_(mean)
    pca.components.copy_(vectors * largest.sign() / spread.sqrt())
    pca.explained.copy_(variance[:dim].sum() / variance.sum())
    return pca


class ReducedEncoder(nn.Module):
    """Any frozen encoder with its tokens reduced by a PCA."""

    def __init__(self, encoder: Encoder, pca: PCA) -> None:
        super().__init__()
        channels, dim = pca.components.shape
        if channels != encoder.dim:
            raise ValueError(f"expected a PCA of {encoder.dim} channels, got one of {channels}")
        self.encoder = encoder
        self.pca = pca
        self.name = f"{encoder.name}-pca{dim}"
        self.num_tokens = encoder.num_tokens
        self.dim = dim

    def forward(self, images: Tensor) -> Tensor:
        """Return the reduced tokens."""
        return self.pca(self.encoder(images))

    def digest(self) -> str:
        """Return the hash of the encoder and the PCA."""
        return hashlib.sha256((self.encoder.digest() + content_hash(self.pca)).encode()).hexdigest()
