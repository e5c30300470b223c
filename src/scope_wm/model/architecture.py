"""The complete description of a world model, and the world model that it describes.

A later stage reads the architecture from here, as it stands in the model's own directory, never from flags.
"""

from dataclasses import dataclass
from typing import Literal

import torch

from scope_wm.background import BackgroundUpdate, Copy, CrossAttention, ForegroundDelta, Ignored
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.predictor import Absolute, Predictor, Residual
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import Fuse, TokenConfig, WorldModel
from scope_wm.selector import (
    DistilledSelector,
    EveryToken,
    LatinHypercubeSelector,
    MotionSelector,
    RandomSelector,
    RelevanceHead,
    Selector,
)
from scope_wm.types import Statistics, UsageError


@dataclass(frozen=True, kw_only=True)
class SelectorConfig:
    """Which selector, and how many tokens it keeps."""

    kind: Literal["every-token", "distilled", "random", "latin-hypercube", "motion"]
    k: int
    hidden: int = 128
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class BackgroundConfig:
    """Which background update, and its size."""

    kind: Literal["copy", "foreground-delta", "cross-attention", "ignored"]
    """what becomes of tokens that are not selected; ignored, with a random selector: Sparse Imagination"""
    hidden_multiplier: float = 2.0
    """hidden width of foreground-delta, in token widths"""
    alpha: float = 1.0
    """weight of foreground-delta's update"""
    heads: int = 4
    """heads of cross-attention"""
    rank: int = 64
    """width of cross-attention, over all heads"""

    def __post_init__(self) -> None:
        """Refuse numbers that make no sense."""
        if not (self.hidden_multiplier > 0 and self.heads > 0 and self.rank > 0):
            raise UsageError(f"expected sizes of a background update above 0, got {self}")
        if self.rank % self.heads:
            raise UsageError(f"expected a rank that {self.heads} heads can share, got {self.rank}")


@dataclass(frozen=True, kw_only=True)
class EncoderReference:
    """Which frozen encoder a model sees with: how to load it, the hash of its weights, and its PCA if any."""

    config: EncoderConfig
    digest: str
    pca_channels: int | None = None


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Everything that rebuilds a world model and tells what to feed it with."""

    task: str
    frameskip: int
    statistics: Statistics
    encoder: EncoderReference
    tokens: TokenConfig
    history: int
    transformer: TransformerConfig
    selector: SelectorConfig
    background: BackgroundConfig
    output: Literal["absolute", "residual"] = "absolute"

    def __post_init__(self) -> None:
        """Refuse a selector that does not fit the tokens or the background update."""
        tokens, selector = self.tokens.num_tokens, self.selector
        if not 1 <= selector.k <= tokens:
            raise UsageError(f"expected K between 1 and {tokens}, got {selector.k}")
        if selector.kind == "every-token" and selector.k != tokens:
            raise UsageError(f"a dense model keeps all {tokens} tokens, got K = {selector.k}")
        if self.background.kind == "ignored" and selector.kind not in ("random", "latin-hypercube"):
            raise UsageError(
                "expected the selector random or latin-hypercube where the background is ignored, for all "
                f"frames have the same patches, got {selector.kind}"
            )


def build(config: ModelConfig) -> WorldModel:
    """Make the world model of a config, with fresh weights."""
    tokens = config.tokens
    predictor = Predictor(
        width=tokens.width,
        num_tokens=tokens.num_tokens,
        history=config.history,
        transformer=config.transformer,
        output=Absolute() if config.output == "absolute" else Residual(tokens.width),
    )
    return WorldModel(
        Fuse(tokens), predictor, build_selector(config.selector, tokens), build_background(config)
    )


def build_selector(config: SelectorConfig, tokens: TokenConfig) -> Selector:
    """Make a selector with fresh weights."""
    generator = torch.Generator().manual_seed(config.seed)
    match config.kind:
        case "every-token":
            return EveryToken(tokens.num_tokens)
        case "distilled":
            head = RelevanceHead(visual=tokens.visual, embedding=tokens.embedding, hidden=config.hidden)
            return DistilledSelector(head, config.k)
        case "random":
            return RandomSelector(config.k, generator)
        case "latin-hypercube":
            return LatinHypercubeSelector(config.k, generator)
        case "motion":
            return MotionSelector(config.k, torch.zeros(tokens.num_tokens, tokens.visual))


def build_background(config: ModelConfig) -> BackgroundUpdate:
    """Make a background update with fresh weights."""
    width, background = config.tokens.width, config.background
    match background.kind:
        case "copy":
            return Copy()
        case "foreground-delta":
            multiplier = background.hidden_multiplier
            return ForegroundDelta(width, hidden_multiplier=multiplier, alpha=background.alpha)
        case "ignored":
            return Ignored()
        case "cross-attention":
            tokens = config.tokens.num_tokens
            return CrossAttention(width, tokens, heads=background.heads, rank=background.rank)
