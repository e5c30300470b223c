"""A finished world model and what there is to learn from: what later stages of training begin with."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scope_wm.data.split import open_splits
from scope_wm.data.token_cache import Device, SplitTokens, open_tokens
from scope_wm.model.architecture import ModelConfig
from scope_wm.model.checkpoint import TrainedModel, model_directory, read_header
from scope_wm.train.dynamics import Experience, open_experience
from scope_wm.types import UsageError


@dataclass(frozen=True, kw_only=True)
class FinishedModel:
    """A finished world model, what there is to learn from, and where both are."""

    directory: Path
    header: dict[str, Any]
    config: ModelConfig
    data: Path
    tokens: SplitTokens

    @property
    def digest(self) -> str:
        """Return the hash of its weights."""
        return str(self.header["weights"])

    def load(self) -> TrainedModel:
        """Load the model."""
        return TrainedModel.from_pretrained(self.directory)

    def experience(self, actions: int | None = None) -> Experience:
        """Open windows of so many actions; None: as many as it sees frames."""
        config = self.config
        return open_experience(
            self.data,
            self.tokens,
            history=config.history if actions is None else actions,
            frameskip=config.frameskip,
            values=config.statistics,
        )


def open_model(directory: Path, data: Path, tokens: str, device: Device) -> FinishedModel:
    """Open a world model and the tokens of its encoder; refuse other tokens, and another task."""
    directory = model_directory(str(directory))
    header, config = read_header(directory)
    if (task := open_splits(data).training.store.config.task) != config.task:
        raise UsageError(f"expected data of {config.task}, the task of {directory}; {data} is of {task}")
    opened = open_tokens(tokens, data, config.encoder.config, device)
    opened.check_encoder(config.encoder)
    return FinishedModel(directory=directory, header=header, config=config, data=data, tokens=opened)


def open_teacher(directory: Path, data: Path, tokens: str, device: Device) -> FinishedModel:
    """Open a dense model likewise; refuse a sparse one."""
    opened = open_model(directory, data, tokens, device)
    if opened.config.selector.kind != "every-token":
        raise UsageError(f"expected a dense model as the teacher, {directory} is a sparse one")
    return opened
