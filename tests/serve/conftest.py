"""An untrained captioner and images, for tests of how an answer is made and not of its content."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from lightning_idc.models import PairTransformer
from lightning_idc.nn.vocabulary import Vocabulary


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a captioner for 32 x 32 images."""
    torch.manual_seed(0)
    words = Vocabulary.build(["the cube moved to the left", "nothing changed"]).words
    result = PairTransformer(
        vocabulary=words, image_size=(32, 32), max_length=6, width=16, heads=2, grid=2, no_change_captions=["nothing"]
    )
    result.build()
    return result.save_pretrained(tmp_path_factory.mktemp("model") / "small")


@pytest.fixture
def draw(tmp_path: Path) -> Callable[..., Path]:
    """Return a function that writes random pixels and an optional white square; equal seeds give equal pixels."""

    def write(
        name: str, seed: int = 0, square: tuple[int, int] | None = None, size: tuple[int, int] = (32, 32)
    ) -> Path:
        pixels = np.random.default_rng(seed).integers(0, 200, (size[1], size[0], 3), np.uint8)
        if square is not None:
            pixels[square[1] : square[1] + 8, square[0] : square[0] + 8] = 255
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
        return path

    return write
