"""An encoder followed by a frozen PCA: V channels to d.

    y = (x - mean) W        W = the d leading eigenvectors of the covariance of x, times one number

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
    variance, vectors = torch.linalg.eigh(square / count - mean.outer(mean))  # ascending
    variance, vectors = variance.clamp(min=0).flip(0), vectors.flip(1)[:, :dim]
    kept = variance[:dim].sum()
    if not kept > 0:
        raise ValueError("expected tokens that differ, got the same one everywhere")
    # An eigenvector has no sign of its own: the largest entry is positive.
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    pca = PCA(len(mean), dim)
    pca.mean.copy_(mean)
    pca.components.copy_(vectors * largest.sign() * (dim / kept).sqrt())
    pca.explained.copy_(kept / variance.sum())
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
