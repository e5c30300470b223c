"""What really ships: the models that are committed, and that a wheel holds them."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from scope_wm.model.checkpoint import TrainedModel, read_header
from scope_wm.model.shipped import FOLDER, shipped_models
from scope_wm.shipping.card import card
from scope_wm.shipping.record import read_record

PROJECT = Path(__file__).parents[2]
KEPT = {"dense": 196, "fast": 98, "faster": 32}


def test_the_models_of_wall_ship() -> None:
    assert {f"wall/{name}" for name in KEPT} <= set(shipped_models())


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_model_is_what_its_name_and_card_say(name: str) -> None:
    directory = shipped_models()[name]
    header, config = read_header(directory)
    task, kind = name.split("/")
    assert (config.task, config.selector.k) == (task, KEPT[kind])
    assert (directory / "README.md").read_text() == card(name, header, read_record(directory))


@pytest.mark.parametrize("name", shipped_models())
def test_a_shipped_model_loads_with_the_shipped_encoder(name: str) -> None:
    model = TrainedModel.from_pretrained(name)
    assert all(value.isfinite().all() for value in model.world_model.state_dict().values())
    assert model.load_encoder().num_tokens == model.config.tokens.num_tokens


def test_everything_that_ships_stays_small() -> None:
    files = [file for file in FOLDER.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 25e6
    assert all(file.stat().st_size < 1e6 for file in files if "encoder" not in file.parts)


def test_a_wheel_holds_everything_that_ships(added: Path, tmp_path: Path) -> None:
    copy = tmp_path / "project"
    shutil.copytree(PROJECT / "src" / "scope_wm", copy / "src" / "scope_wm")
    shutil.copytree(added, copy / "src" / "scope_wm" / "shipped", dirs_exist_ok=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(PROJECT / name, copy)
    build = "from setuptools.build_meta import build_wheel; build_wheel('wheel')"
    subprocess.run([sys.executable, "-c", build], cwd=copy, capture_output=True, check=True)
    (wheel,) = (copy / "wheel").glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    shipped = {
        file.relative_to(copy / "src").as_posix()
        for file in (copy / "src" / "scope_wm" / "shipped").rglob("*")
        if file.is_file()
    }
    assert len(shipped) >= 12 + 3
    assert shipped <= held
