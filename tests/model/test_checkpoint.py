import ast
import json
import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import scope_wm
from scope_wm.model.architecture import (
    BackgroundConfig,
    EncoderReference,
    ModelConfig,
    SelectorConfig,
    build,
)
from scope_wm.model.checkpoint import TrainedModel
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.reduced import PCA
from scope_wm.model.rollout import rollout
from scope_wm.model.transformer import TransformerConfig
from scope_wm.model.world_model import TokenConfig
from scope_wm.records import to_json
from scope_wm.types import Statistics, UsageError

N, K = 9, 4
SELECTORS = ("every-token", "distilled", "random", "latin-hypercube", "motion")
BACKGROUNDS = ("copy", "foreground-delta", "cross-attention")


def describe(selector: Any = "distilled", background: Any = "foreground-delta") -> ModelConfig:
    """Return a small config in which hardly anything is a default."""
    return ModelConfig(
        task="wall",
        frameskip=3,
        statistics=Statistics(
            action_mean=np.array([0.1, 1 / 3]),
            action_std=np.array([1.0, 2.0]),
            proprio_mean=np.array([30.0]),
            proprio_std=np.array([1e-6]),
        ),
        encoder=EncoderReference(
            config=EncoderConfig(source="some/encoder", layer=2, grid=3), digest="0" * 64
        ),
        tokens=TokenConfig(num_tokens=N, visual=5, proprio=1, action=6, embedding=3),
        history=2,
        transformer=TransformerConfig(depth=2, heads=2, head_width=4, mlp_width=8, dropout=0.5),
        selector=SelectorConfig(kind=selector, k=N if selector == "every-token" else K, hidden=7, seed=3),
        background=BackgroundConfig(kind=background, hidden_multiplier=1.5, alpha=0.5, heads=3, rank=6),
    )


def make(selector: str = "distilled", background: str = "foreground-delta", seed: int = 0) -> TrainedModel:
    """Make a model in which no weight has its initial value."""
    config = describe(selector, background)
    model = build(config).eval()
    generator = torch.Generator().manual_seed(seed)
    for value in model.state_dict().values():
        value.copy_(torch.randn(value.shape, generator=generator))
    return TrainedModel(config=config, world_model=model)


def imagine(model: TrainedModel) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    shapes = ((2, N, 5), (2, 1), (2, 4, 6))
    with torch.no_grad():
        return rollout(model.world_model, *(torch.randn(shape, generator=generator) for shape in shapes))


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A saved model."""
    make().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def edit_header(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    file = directory / "config.json"
    header = json.loads(file.read_text())
    change(header)
    file.write_text(json.dumps(header))


def refusal(source: str | Path, **options: Any) -> str:
    with pytest.raises(UsageError) as error:
        TrainedModel.from_pretrained(source, **options)
    return str(error.value)


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("selector", SELECTORS)
def test_a_loaded_model_is_the_saved_one(selector: str, background: str, tmp_path: Path) -> None:
    model = make(selector, background)
    model.save_pretrained(tmp_path)
    loaded = TrainedModel.from_pretrained(tmp_path)
    assert to_json(loaded.config) == to_json(model.config)
    assert loaded.world_model.state_dict().keys() == model.world_model.state_dict().keys()
    torch.testing.assert_close(imagine(loaded), imagine(model), rtol=0, atol=0)


def test_a_model_directory_holds_two_files(saved: Path) -> None:
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]


def test_a_loaded_model_is_ready_to_plan(saved: Path) -> None:
    assert not any(module.training for module in TrainedModel.from_pretrained(saved).world_model.modules())


def test_the_pca_is_stored_with_the_model(tmp_path: Path) -> None:
    pca = PCA(12, 5)
    for value in pca.state_dict().values():
        nn.init.normal_(value)
    model = make()
    config = replace(model.config, encoder=replace(model.config.encoder, pca_channels=12))
    TrainedModel(config=config, world_model=model.world_model, pca=pca).save_pretrained(tmp_path)
    loaded = TrainedModel.from_pretrained(tmp_path)
    assert loaded.pca is not None
    tokens = torch.randn(3, 12)
    torch.testing.assert_close(loaded.pca(tokens), pca(tokens), rtol=0, atol=0)
    torch.testing.assert_close(imagine(loaded), imagine(model), rtol=0, atol=0)


def test_half_precision_halves_the_weights_and_keeps_three_digits(tmp_path: Path) -> None:
    model = make("every-token", "copy")
    model.save_pretrained(tmp_path / "single")
    model.save_pretrained(tmp_path / "half", torch.float16)
    loaded = TrainedModel.from_pretrained(tmp_path / "half").world_model
    for name, value in model.world_model.state_dict().items():
        assert loaded.state_dict()[name].dtype == torch.float32
        torch.testing.assert_close(loaded.state_dict()[name], value, rtol=1e-3, atol=1e-6)
    content = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("single", "half")]
    single, half = (len(x) - int.from_bytes(x[:8], "little") for x in content)  # without the names
    assert (single - 8) == 2 * (half - 8)


@pytest.mark.parametrize("damage", ["truncated", "one byte", "another model", "empty"])
def test_weights_that_are_not_the_saved_ones_are_refused(damage: str, saved: Path, tmp_path: Path) -> None:
    file = saved / "model.safetensors"
    content = bytearray(file.read_bytes())
    if damage == "truncated":
        del content[-1]
    elif damage == "one byte":
        content[-100] ^= 1
    elif damage == "another model":
        make(seed=1).save_pretrained(tmp_path / "other")
        content = bytearray((tmp_path / "other" / "model.safetensors").read_bytes())
    else:
        content.clear()
    file.write_bytes(content)
    assert "truncated, altered or replaced" in refusal(saved)


def test_missing_files_are_named(saved: Path, tmp_path: Path) -> None:
    (saved / "model.safetensors").unlink()
    assert "model.safetensors is missing" in refusal(saved)
    (saved / "config.json").unlink()
    assert "it has no config.json" in refusal(saved)
    assert "no model directory" in refusal(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"model_type": "dinov2", "hidden_size": 384}', "is not the config of a world-model"),
        ("[1, 2]", "expected an object, got [1, 2]"),
        ('{"kind": "world-model", "format": 1', "is not JSON"),
        ("", "is not JSON"),
        ('{"kind": "world-model", "format": 2}', "has model format 2, this version reads format 1: update"),
        ('{"kind": "world-model"}', "has model format None"),
        ('{"kind": "world-model", "format": 1}', "missing ['model', 'weights']"),
    ],
)
def test_a_foreign_or_damaged_config_is_refused(text: str, message: str, saved: Path) -> None:
    (saved / "config.json").write_text(text)
    assert message in refusal(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.pop("frameskip"), "config.json: missing ['frameskip']"),
        (lambda m: m["tokens"].pop("action"), "config.json: tokens: missing ['action']"),
        (lambda m: m.update(colour=1), "config.json: unknown ['colour']"),
        (lambda m: m["selector"].update(kk=1), "config.json: selector: unknown ['kk']"),
        (lambda m: m.update(history="2"), "history: expected int, got '2'"),
        (lambda m: m["selector"].update(kind="best"), "selector: kind: expected one of ['every-token', "),
        (lambda m: m["statistics"].update(action_std="1"), "action_std: expected a list of numbers, got '1'"),
        (lambda m: m["selector"].update(k=0), "expected K between 1 and 9, got 0"),
        (lambda m: m["selector"].update(k=10), "expected K between 1 and 9, got 10"),
        (lambda m: m["selector"].update(kind="every-token"), "a dense model keeps all 9 tokens, got K = 4"),
        (lambda m: m["transformer"].update(depth=1), "does not fit its config.json"),
        (lambda m: m["transformer"].update(mlp_width=9), "does not fit its config.json"),
        (lambda m: m["background"].update(kind="copy"), "does not fit its config.json"),
    ],
)
def test_a_config_that_was_changed_is_refused_naming_the_place(
    change: Callable[[dict[str, Any]], object], message: str, saved: Path
) -> None:
    edit_header(saved, lambda header: change(header["model"]))
    assert message in refusal(saved)


def test_another_k_must_be_allowed(saved: Path) -> None:
    assert "trained with K = 4" in refusal(saved, k=5)
    assert TrainedModel.from_pretrained(saved, k=4).config.selector.k == 4
    other = TrainedModel.from_pretrained(saved, k=5, allow_other_k=True)
    assert (other.config.selector.k, other.world_model.selector.k) == (5, 5)
    tokens = torch.randn(1, N, 11)
    assert other.world_model.select(tokens).shape == (1, 5)
    assert "between 1 and 9, got 10" in refusal(saved, k=10, allow_other_k=True)


def test_a_dense_model_has_no_other_k(tmp_path: Path) -> None:
    make("every-token", "copy").save_pretrained(tmp_path)
    assert "keeps all 9 tokens, got K = 4" in refusal(tmp_path, k=4, allow_other_k=True)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let writing fail as on a full disk, in any file after this many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("failing", ["model.safetensors", "config.json"])
def test_saving_that_fails_leaves_the_old_model(failing: str, saved: Path) -> None:
    size = (saved / "model.safetensors").stat().st_size
    new = make(seed=1)
    limit = size // 2
    if failing == "config.json":
        limit = size + 1
        new = replace(new, config=replace(new.config, task="x" * limit))
    with largest_file(limit), pytest.raises(OSError, match="File too large"):
        new.save_pretrained(saved)
    assert sorted(path.name for path in saved.iterdir()) == ["config.json", "model.safetensors"]
    torch.testing.assert_close(imagine(TrainedModel.from_pretrained(saved)), imagine(make()), rtol=0, atol=0)


def test_saving_again_replaces_the_model(saved: Path) -> None:
    make(seed=1).save_pretrained(saved)
    loaded = imagine(TrainedModel.from_pretrained(saved))
    torch.testing.assert_close(loaded, imagine(make(seed=1)), rtol=0, atol=0)
    assert not torch.allclose(loaded, imagine(make()))


def test_the_encoder_is_loaded_and_must_be_the_same(
    random_model: Callable[[str], Path], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    model = TrainedModel.from_pretrained(random_model("wall"))
    encoder = model.load_encoder()
    assert (encoder.num_tokens, encoder.dim) == (16, 8)
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 56}
    transformers.Dinov2Model(transformers.Dinov2Config(**sizes, patch_size=14)).save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="has other weights than the encoder this model was trained with"):
        model.load_encoder(str(tmp_path))


def test_without_network_a_hub_id_is_found_in_the_local_cache_or_refused(saved: Path, tmp_path: Path) -> None:
    pytest.importorskip("huggingface_hub")
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "cache" / "models--lab--fast"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(commit)
    (repository / "snapshots").mkdir()
    saved.rename(repository / "snapshots" / commit)
    code = (
        "from scope_wm.model.checkpoint import TrainedModel\n"
        "print(TrainedModel.from_pretrained('lab/fast').config.task)\n"
        "try:\n    TrainedModel.from_pretrained('lab/slow')\n"
        "except ValueError as error:\n    print(type(error).__name__, error)\n"
    )
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(tmp_path / "cache")}
    process = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100, check=True
    )
    found, refused = process.stdout.split("\n", 1)
    assert found == "wall"
    assert refused.startswith(
        "UsageError there is no directory lab/slow, and the hub gave no model of that name"
    )


@pytest.mark.parametrize("source", ["./no/model", "/no/model", "model", "a/b/c", "two words/model"])
def test_what_is_neither_a_directory_nor_a_hub_id_is_refused(source: str) -> None:
    assert source in refusal(source)


def test_push_to_hub_uploads_the_two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pytest.importorskip("huggingface_hub")
    calls: list[tuple[object, ...]] = []

    def create_repo(repository: str, *, private: bool, exist_ok: bool) -> None:
        calls.append(("create", repository, private, exist_ok))

    def upload_folder(*, repo_id: str, folder_path: str) -> str:
        loaded = TrainedModel.from_pretrained(folder_path)
        names = sorted(path.name for path in Path(folder_path).iterdir())
        calls.append(("upload", repo_id, names, torch.equal(imagine(loaded), imagine(make()))))
        return "https://hub/lab/fast"

    monkeypatch.setattr(hub, "create_repo", create_repo)
    monkeypatch.setattr(hub, "upload_folder", upload_folder)
    assert make().push_to_hub("lab/fast", private=True) == "https://hub/lab/fast"
    assert calls == [
        ("create", "lab/fast", True, True),
        ("upload", "lab/fast", ["config.json", "model.safetensors"], True),
    ]


def pickling(source: str) -> list[str]:
    """Return what a module writes pickles with, or reads them with other than by the weights-only reader."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import | ast.ImportFrom) else []
        modules = names if isinstance(node, ast.Import) else [getattr(node, "module", None)]
        if {str(m).split(".")[0] for m in modules} & {"pickle", "dill", "cloudpickle", "joblib", "shelve"}:
            found += [name for name in names if name != "UnpicklingError"]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            called = ast.unparse(node.func)
            unsafe = called == "torch.load" and options.get("weights_only") != "True"
            if called == "torch.save" or unsafe or options.get("allow_pickle") == "True":
                found.append(called)
    return found


def test_no_module_pickles() -> None:
    for path in Path(scope_wm.__file__).parent.rglob("*.py"):
        assert pickling(path.read_text()) == [], path


def test_the_rule_sees_a_pickle() -> None:
    assert pickling("import os, pickle") == ["os", "pickle"]
    assert pickling("from pickle import UnpicklingError, loads") == ["loads"]
    assert pickling("torch.save(x, f)\ntorch.load(f)\ntorch.load(f, weights_only=False)") == [
        "torch.save",
        "torch.load",
        "torch.load",
    ]
    assert pickling("np.load(f, allow_pickle=True)") == ["np.load"]
    assert pickling("torch.load(f, weights_only=True)\nsafetensors.torch.save(x)") == []
