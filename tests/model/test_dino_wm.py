import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from scope_wm.cli import main
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.rollout import rollout
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import TokenConfig

yaml = pytest.importorskip("yaml")

VISUAL, EMBEDDING, HEADS, HEAD_WIDTH, MLP, DEPTH, HISTORY, PATCHES = 12, 3, 2, 4, 16, 2, 3, 196
WIDTH = VISUAL + 2 * EMBEDDING
FRAMESKIP, ACTION, PROPRIO = 5, 2, 4
Refusal = Callable[..., str]

HYDRA = {
    "env": {"name": "pusht", "kwargs": {"with_velocity": True}},
    "encoder": {"name": "dinov2_vits14", "feature_key": "x_norm_patchtokens"},
    "predictor": {"_target_": "models.vit.ViTPredictor", "depth": DEPTH, "heads": HEADS, "dropout": 0.1},
    "frameskip": FRAMESKIP,
    "concat_dim": 1,
    "normalize_action": True,
    "num_action_repeat": 1,
    "num_proprio_repeat": 1,
    "num_hist": HISTORY,
}


# A yardstick of the dense model, with the names and the structure that the released pickles have.
class Attention(nn.Module):
    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.attend = nn.Softmax(dim=-1)
        self.dropout = nn.Dropout(0.1)
        self.to_qkv = nn.Linear(WIDTH, 3 * HEADS * HEAD_WIDTH, bias=False)
        self.to_out = nn.Sequential(nn.Linear(HEADS * HEAD_WIDTH, WIDTH), nn.Dropout(0.1))
        self.bias = mask  # neither a parameter nor a buffer, as in DINO-WM

    def forward(self, x: Tensor) -> Tensor:
        parts = self.to_qkv(self.norm(x)).split(HEADS * HEAD_WIDTH, dim=-1)
        mixed = []
        for q, k, v in zip(*(part.split(HEAD_WIDTH, dim=-1) for part in parts), strict=True):
            scores = q @ k.transpose(1, 2) / HEAD_WIDTH**0.5
            scores[:, self.bias[: x.shape[1], : x.shape[1]] == 0] = -torch.inf
            mixed.append(self.dropout(self.attend(scores)) @ v)
        return self.to_out(torch.cat(mixed, dim=-1))


class FeedForward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        inner, outer = nn.Linear(WIDTH, MLP), nn.Linear(MLP, WIDTH)
        self.net = nn.Sequential(
            nn.LayerNorm(WIDTH), inner, nn.GELU(), nn.Dropout(0.1), outer, nn.Dropout(0.1)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        mask = torch.ones(HISTORY, HISTORY).tril().kron(torch.ones(PATCHES, PATCHES))
        self.norm = nn.LayerNorm(WIDTH)
        self.layers = nn.ModuleList(nn.ModuleList([Attention(mask), FeedForward()]) for _ in range(DEPTH))

    def forward(self, x: Tensor) -> Tensor:
        for attention, feed_forward in self.layers:
            x = x + attention(x)
            x = x + feed_forward(x)
        return self.norm(x)


class ViTPredictor(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.pos_embedding = nn.Parameter(torch.randn(1, HISTORY * PATCHES, WIDTH))
        self.dropout = nn.Dropout(0.0)
        self.transformer = Transformer()
        self.pool = "mean"

    def forward(self, x: Tensor) -> Tensor:
        return self.transformer(self.dropout(x + self.pos_embedding[:, : x.shape[1]]))


class ProprioceptiveEmbedding(nn.Module):
    def __init__(self, channels: int, width: int = EMBEDDING) -> None:
        super().__init__()
        self.patch_embed = nn.Conv1d(channels, width, kernel_size=1, stride=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.patch_embed(x.transpose(1, 2)).transpose(1, 2)


class VQVAE(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dec = nn.Sequential(nn.ConvTranspose2d(VISUAL, 3, 4), nn.ReLU())


class AcceleratedOptimizer:
    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


CLASSES = {
    "models.vit": [ViTPredictor, Transformer, Attention, FeedForward],
    "models.proprio": [ProprioceptiveEmbedding],
    "models.vqvae": [VQVAE],
    "accelerate.optimizer": [AcceleratedOptimizer],
}


class Theirs(nn.Module):
    """The parts of a DINO-WM model, and its rollout."""

    def __init__(self) -> None:
        super().__init__()
        self.predictor = ViTPredictor()
        self.action_encoder = ProprioceptiveEmbedding(FRAMESKIP * ACTION)
        self.proprio_encoder = ProprioceptiveEmbedding(PROPRIO)

    def rollout(self, visual: Tensor, proprio: Tensor, actions: Tensor) -> Tensor:
        embedded = self.action_encoder(actions)

        def tiled(x: Tensor) -> Tensor:
            return x[:, None].expand(-1, PATCHES, -1)

        first = self.proprio_encoder(proprio[:, None])[:, 0]
        frames = [torch.cat([visual, tiled(first), tiled(embedded[:, 0])], dim=-1)]
        for step in range(1, actions.shape[1] + 1):
            window = torch.stack(frames[-HISTORY:], dim=1)
            frame = self.predictor(window.flatten(1, 2)).unflatten(1, (-1, PATCHES))[:, -1]
            if step < actions.shape[1]:
                frame = torch.cat([frame[..., :-EMBEDDING], tiled(embedded[:, step])], dim=-1)
            frames.append(frame)
        return torch.stack(frames[1:], dim=1)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A DINOv2 of width 12 in a directory."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": VISUAL, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 28}
    path = tmp_path_factory.mktemp("encoder")
    config = transformers.Dinov2Config(**sizes, patch_size=14, mlp_ratio=1)
    transformers.Dinov2Model(config).save_pretrained(path)
    return path


@pytest.fixture
def theirs() -> Theirs:
    """A DINO-WM model in which no weight has its initial value."""
    torch.manual_seed(0)
    model = Theirs().eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.5)
    return model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An output folder of DINO-WM that lacks nothing but its checkpoint."""
    (tmp_path / "checkpoints").mkdir()
    write_hydra(tmp_path)
    return tmp_path


def write_hydra(folder: Path, **changes: object) -> None:
    (folder / "hydra.yaml").write_text(yaml.safe_dump(HYDRA | changes))


def parts(model: Theirs) -> dict[str, Any]:
    """Return what DINO-WM saves, with an optimizer that has made a step: its state is a defaultdict."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    return {
        "epoch": 100,
        "predictor": model.predictor,
        "predictor_optimizer": AcceleratedOptimizer(optimizer),
        "decoder": VQVAE(),
        "decoder_optimizer": AcceleratedOptimizer(torch.optim.Adam([weight])),
        "action_encoder": model.action_encoder,
        "proprio_encoder": model.proprio_encoder,
    }


def save(payload: object, folder: Path, name: str = "model_latest.pth") -> None:
    """Pickle as a Python does that has DINO-WM's classes under DINO-WM's names."""
    with pytest.MonkeyPatch.context() as patch:
        for path, classes in CLASSES.items():
            module = ModuleType(path)
            patch.setitem(sys.modules, path.split(".")[0], ModuleType(path.split(".")[0]))
            patch.setitem(sys.modules, path, module)
            for kind in classes:
                patch.setattr(kind, "__module__", path)
                setattr(module, kind.__name__, kind)
        torch.save(payload, folder / "checkpoints" / name)


def run(folder: Path, encoder: Path, *options: str) -> int:
    out = str(folder / "out")
    return main(["import", "dino-wm", str(folder), "--out", out, "--encoder", str(encoder), *options])


@pytest.fixture
def refusal(folder: Path, encoder: Path, capsys: pytest.CaptureFixture[str]) -> Refusal:
    """Import, see that it is refused as wrong usage and nothing is written, and return what it said."""

    def refused(*options: str) -> str:
        assert run(folder, encoder, *options) == 2
        assert not (folder / "out").exists()
        return capsys.readouterr().err

    return refused


def test_the_imported_model_imagines_what_theirs_does(theirs: Theirs, folder: Path, encoder: Path) -> None:
    save(parts(theirs), folder)
    assert run(folder, encoder) == 0
    visual, proprio = torch.randn(2, PATCHES, VISUAL), torch.randn(2, PROPRIO)
    actions = torch.randn(2, 5, FRAMESKIP * ACTION)
    ours = TrainedModel.from_pretrained(folder / "out").world_model
    with torch.no_grad():
        expected = theirs.rollout(visual, proprio, actions)
        frames = rollout(ours, visual, proprio, actions)
    assert expected.std() > 0.3
    torch.testing.assert_close(frames, expected, rtol=0, atol=1e-5)


def test_the_config_says_how_to_use_the_model(
    theirs: Theirs, folder: Path, encoder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save(parts(theirs), folder)
    assert run(folder, encoder) == 0
    assert "decoder is not imported" in capsys.readouterr().out
    model = TrainedModel.from_pretrained(folder / "out")
    config = model.config
    assert (config.task, config.frameskip, config.history) == ("push_t", FRAMESKIP, HISTORY)
    assert config.tokens == TokenConfig(visual=VISUAL, proprio=PROPRIO, action=10, embedding=EMBEDDING)
    assert config.transformer == TransformerConfig(depth=2, heads=2, head_width=4, mlp_width=16, dropout=0.1)
    assert (config.selector.kind, config.selector.k) == ("every-token", 196)
    np.testing.assert_array_equal(config.statistics.action_std, [0.2019, 0.2002])
    np.testing.assert_array_equal(config.statistics.proprio_mean[2:], [-2.93032027, 2.54307914])
    assert model.load_encoder().dim == VISUAL


def test_another_task_needs_the_statistics_of_its_data(
    theirs: Theirs, folder: Path, encoder: Path, refusal: Refusal
) -> None:
    save(parts(theirs), folder)
    write_hydra(folder, env={"name": "point_maze"})
    assert "give --statistics FILE" in refusal()
    values = {"action_mean": [0.1, 0.2], "action_std": [0.3, 0.4]}
    values |= {"proprio_mean": [1.0, 2.0, 3.0, 4.0], "proprio_std": [5.0, 6.0, 7.0, 8.0]}
    file = folder / "statistics.json"
    file.write_text(json.dumps(values | {"digest": "0123"}))
    assert run(folder, encoder, "--statistics", str(file)) == 0
    config = TrainedModel.from_pretrained(folder / "out").config
    assert config.task == "point_maze"
    assert {name: list(value) for name, value in vars(config.statistics).items()} == values


def test_an_unknown_environment_needs_a_task(
    theirs: Theirs, folder: Path, encoder: Path, refusal: Refusal
) -> None:
    save(parts(theirs), folder)
    write_hydra(folder, env={"name": "my_push"})
    assert "'my_push'" in refusal()
    assert run(folder, encoder, "--task", "push_t") == 0


def test_the_last_epoch_is_taken_when_there_is_no_latest(theirs: Theirs, folder: Path, encoder: Path) -> None:
    save(parts(Theirs()), folder, "model_9.pth")
    save(parts(theirs), folder, "model_10.pth")
    assert run(folder, encoder) == 0
    ours = TrainedModel.from_pretrained(folder / "out").world_model
    torch.testing.assert_close(ours.predictor.positions, theirs.predictor.pos_embedding[0], rtol=0, atol=0)


class Touch:
    """An object whose pickle makes a file when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("place", ["whole", "part"])
def test_a_hostile_checkpoint_runs_nothing_and_is_refused(
    place: str, theirs: Theirs, folder: Path, refusal: Refusal
) -> None:
    call = Touch(folder / "marker")
    save(call if place == "whole" else parts(theirs) | {"epoch": call}, folder)
    assert "nothing of it was run: it calls for posix.system" in refusal()
    assert not (folder / "marker").exists()


def test_a_truncated_checkpoint_is_refused(theirs: Theirs, folder: Path, refusal: Refusal) -> None:
    save(parts(theirs), folder)
    file = folder / "checkpoints" / "model_latest.pth"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    assert "is damaged" in refusal()


def test_missing_files_are_named(folder: Path, refusal: Refusal) -> None:
    assert "expected model_latest.pth or model_EPOCH.pth" in refusal()
    (folder / "hydra.yaml").unlink()
    assert "expected hydra.yaml" in refusal()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"concat_dim": 0}, "expected concat_dim = 1, got 0"),
        ({"encoder": {"name": "r3m"}}, "expected encoder.name = 'dinov2_vits14', got 'r3m'"),
        ({"num_hist": None}, "history: expected int, got None"),
        ({"frameskip": 0}, "at least 1"),
        ({"num_hist": 2}, "position table (num_hist x 14 x 14): expected 392, got 588"),
        ({"frameskip": 1}, "action width (frameskip steps): expected 2, got 10"),
        ({"predictor": {"heads": 5, "dropout": 0.1}}, "rows of to_qkv (3 x heads x head width)"),
    ],
)
def test_a_model_of_another_build_is_refused(
    changes: dict[str, object], message: str, theirs: Theirs, folder: Path, refusal: Refusal
) -> None:
    save(parts(theirs), folder)
    write_hydra(folder, **changes)
    assert message in refusal()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("!!python/object/apply:os.system ['touch marker']", "is not plain YAML"),
        ("a: [", "is not plain YAML"),
        ("\xff", "is not plain YAML"),
        ("- a", "environment: expected str, got None"),
    ],
)
def test_a_foreign_hydra_file_is_refused(text: str, message: str, folder: Path, refusal: Refusal) -> None:
    (folder / "hydra.yaml").write_text(text, encoding="latin-1")
    assert message in refusal()


@pytest.mark.parametrize(
    ("place", "module", "message"),
    [
        (
            "predictor.transformer.layers.1.1.net.4",
            nn.Identity(),
            "lacks predictor.transformer.mlp.1.4.bias, ",
        ),
        (
            "predictor.out_proj",
            nn.Linear(2, 2),
            "has not: predictor.out_proj.bias, predictor.out_proj.weight",
        ),
        ("predictor.transformer.norm", nn.LayerNorm(19), "norm.weight: expected (18,), got (19,)"),
        ("action_encoder.patch_embed", nn.Conv1d(10, 3, kernel_size=2), "axis 2, got (3, 10, 2)"),
        ("proprio_encoder", nn.Conv1d(4, 3, 1), "expected fuse.proprio.weight with three axes"),
    ],
)
def test_weights_that_do_not_fit_are_named(
    place: str, module: nn.Module, message: str, theirs: Theirs, folder: Path, refusal: Refusal
) -> None:
    theirs.set_submodule(place, module)
    save(parts(theirs), folder)
    assert message in refusal()


def test_a_model_of_another_encoder_is_refused(theirs: Theirs, folder: Path, refusal: Refusal) -> None:
    payload = parts(theirs)
    theirs.predictor.pos_embedding = nn.Parameter(torch.zeros(1, HISTORY * PATCHES, WIDTH + 1))
    save(payload, folder)
    assert "token width (the encoder's and two embeddings): expected 18, got 19" in refusal()


@pytest.mark.parametrize("payload", [[1], {"predictor": 1}, {"epoch": 1}])
def test_another_payload_is_refused(payload: object, folder: Path, refusal: Refusal) -> None:
    save(payload, folder)
    assert "expected a dict with predictor, action_encoder, proprio_encoder" in refusal()
