from pathlib import Path

import numpy as np
import torch

import scope_wm
from scope_wm.model.encoder import EncoderConfig
from scope_wm.model.encoders import SHIPPED, open_encoder
from scope_wm.model.student import StudentEncoder
from scope_wm.tasks import TASKS

FOLDER = Path(scope_wm.__file__).parent / "shipped"


def test_the_shipped_encoder_is_small_and_says_where_it_is_from() -> None:
    assert sum(file.stat().st_size for file in (FOLDER / "encoder").iterdir()) < 8e6
    card = (FOLDER / "encoder" / "README.md").read_text()
    assert "not Meta's release" in card


def test_its_tokens_change_where_something_moves_and_hardly_elsewhere() -> None:
    encoder = open_encoder(EncoderConfig(source=SHIPPED))
    assert isinstance(encoder, StudentEncoder)
    assert (encoder.num_tokens, encoder.dim) == (196, 64)
    task, frames = TASKS["wall"](), []
    for place in ([15.0, 15.0], [15.0, 50.0]):
        task.set_state(np.array(place))
        frames.append(task.render())
    first, second = encoder(torch.from_numpy(np.stack(frames)))
    change = (first - second).norm(dim=-1).reshape(14, 14)
    rows, columns = np.unravel_index(change.flatten().topk(8).indices.numpy(), (14, 14))
    pixel = 224 / 65 / 16  # of a 65-pixel world, in tokens
    near = [
        min(abs(r - y * pixel) for y in (15, 50)) < 2 and abs(c - 15 * pixel) < 2
        for r, c in zip(rows, columns, strict=True)
    ]
    assert all(near)
    assert change.max() > 5 * change.median()
