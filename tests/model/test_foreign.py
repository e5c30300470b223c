import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from scope_wm.model.foreign import Inert, read_inert, tensors
from scope_wm.types import UsageError

PACKAGES = {"collections", "torch"}


class Call:
    """An object whose pickle calls a function when it is read."""

    def __init__(self, function: Callable[..., object], *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return self.call


def hostile(marker: Path) -> dict[str, Call]:
    """Return calls that make the marker file, by the name of what they call."""
    code = f"open({str(marker)!r}, 'w').close()"
    return {
        "posix.system": Call(os.system, f"touch {marker}"),
        "builtins.eval": Call(eval, code),
        "builtins.exec": Call(exec, code),
    }


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.ModuleDict({"norm": nn.BatchNorm1d(3), "act": nn.GELU()}))


def stepped_optimizer() -> torch.optim.Optimizer:
    """Return an optimizer that has made a step: its state is a defaultdict."""
    weight = nn.Parameter(torch.ones(2))
    weight.grad = torch.ones(2)
    optimizer = torch.optim.AdamW([weight])
    optimizer.step()
    return optimizer


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of torch.save with a whole module and an optimizer."""
    torch.save({"net": network(), "optimizer": stepped_optimizer()}, tmp_path / "file.pth")
    return tmp_path / "file.pth"


def refusal(file: Path) -> str:
    with pytest.raises(UsageError) as error:
        read_inert(file, PACKAGES)
    return str(error.value)


def test_the_tensors_of_a_pickled_module_come_by_their_names(file: Path) -> None:
    payload = read_inert(file, PACKAGES)
    assert isinstance(payload, dict)
    assert type(payload["net"]) is Inert
    assert type(payload["optimizer"]) is Inert
    found = dict(tensors(payload["net"], "net"))
    expected = {f"net.{name}": value for name, value in network().state_dict().items()}
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert not found[name].requires_grad
        torch.testing.assert_close(found[name], value, rtol=0, atol=0)


@pytest.mark.parametrize("thing", [3, {"weight": torch.zeros(1)}, Inert()])
def test_what_is_not_a_module_has_no_tensors(thing: object) -> None:
    with pytest.raises(UsageError, match="expected a pickled torch module as net"):
        list(tensors(thing, "net"))


@pytest.mark.parametrize("name", hostile(Path("marker")))
def test_a_hostile_pickle_runs_nothing_and_is_refused(name: str, tmp_path: Path) -> None:
    marker, file = tmp_path / "marker", tmp_path / "file.pth"
    torch.save({"net": network(), "epoch": hostile(marker)[name]}, file)
    assert f"is refused, nothing of it was run: it calls for {name}, and a file of its kind" in refusal(file)
    assert not marker.exists()


@pytest.mark.parametrize("name", hostile(Path("marker")))
def test_the_hostile_pickles_do_work_where_pickles_are_run(name: str, tmp_path: Path) -> None:
    torch.save(hostile(tmp_path / "marker")[name], tmp_path / "file.pth")
    torch.load(tmp_path / "file.pth", weights_only=False)
    assert (tmp_path / "marker").exists()


def test_a_call_of_an_allowed_package_runs_nothing(tmp_path: Path) -> None:
    code = f"open({str(tmp_path / 'marker')!r}, 'w').close()\ndef f(): pass\n"
    (tmp_path / "hubconf.py").write_text(code)
    torch.save({"epoch": Call(torch.hub.load, str(tmp_path), "f", "local")}, tmp_path / "file.pth")
    payload = read_inert(tmp_path / "file.pth", PACKAGES)
    assert isinstance(payload, dict)
    assert type(payload["epoch"]) is Inert
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("protocol", [2, 4])
def test_a_plain_pickle_is_refused(protocol: int, tmp_path: Path) -> None:
    call = hostile(tmp_path / "marker")["posix.system"]
    (tmp_path / "file.pth").write_bytes(pickle.dumps(call, protocol))
    assert "not a file of torch.save" in refusal(tmp_path / "file.pth")
    assert not (tmp_path / "marker").exists()


def test_a_newer_protocol_is_refused(tmp_path: Path) -> None:
    torch.save(hostile(tmp_path / "marker")["builtins.eval"], tmp_path / "file.pth", pickle_protocol=4)
    assert "is damaged, or not a file of torch.save" in refusal(tmp_path / "file.pth")
    assert not (tmp_path / "marker").exists()


@pytest.mark.parametrize("kept", [0.0, 0.001, 0.5, 0.99])
def test_a_truncated_file_is_refused(kept: float, file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[: int(kept * len(content))])
    assert "is damaged" in refusal(file)


def test_an_altered_byte_is_noticed(file: Path) -> None:
    content = bytearray(file.read_bytes())
    place = content.index(network()[0].weight.detach().numpy().tobytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert "is not as it was saved" in refusal(file)


@pytest.mark.filterwarnings("ignore")  # torch warns of what it refuses next
def test_a_garbled_pickle_is_read_or_refused_and_nothing_else(file: Path) -> None:
    rng, refused = np.random.default_rng(0), 0
    with zipfile.ZipFile(file) as archive:
        records = {name: archive.read(name) for name in archive.namelist()}
    name = next(name for name in records if name.endswith("/data.pkl"))
    for place in rng.integers(2, len(records[name]), 100):  # after the number of the protocol
        garbled = bytearray(records[name])
        garbled[place] = rng.integers(256)
        with zipfile.ZipFile(file, "w") as archive:
            for record, content in (records | {name: bytes(garbled)}).items():
                archive.writestr(record, content)
        try:
            read_inert(file, PACKAGES)
        except UsageError:
            refused += 1
    assert 20 < refused < 100
