"""Finding an encoder by name: the one shipped with the package, a student's directory, or one of the hub."""

import json
from importlib.resources import files
from pathlib import Path

from scope_wm.files import CONFIG
from scope_wm.model.encoder import EncoderConfig, HubEncoder
from scope_wm.model.student import KIND, StudentEncoder

SHIPPED = "student"


def open_encoder(config: EncoderConfig) -> HubEncoder | StudentEncoder:
    """Load the encoder that a config names."""
    if config.source == SHIPPED:
        return StudentEncoder.from_pretrained(Path(str(files("scope_wm") / "shipped" / "encoder")))
    directory = Path(config.source).expanduser()
    return StudentEncoder.from_pretrained(directory) if is_student(directory) else HubEncoder(config)


def is_student(directory: Path) -> bool:
    """Tell whether a directory holds a student: a hub model's config.json has no kind."""
    file = directory / CONFIG
    try:
        return file.is_file() and json.loads(file.read_text()).get("kind") == KIND
    except ValueError:
        return False
