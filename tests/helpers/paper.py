"""Run recipes of recipes/paper in this process, on tiny files with the structure of the authors' data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from helpers.stages_here import stages_here
from lightning_idc.cli import main

PAPER = Path(__file__).resolve().parents[2] / "recipes" / "paper"
CLIP: dict[str, Any] = {
    "embed_dim": 16,
    "quick_gelu": True,
    "vision_cfg": {"image_size": 8, "patch_size": 4, "width": 32, "head_width": 16, "layers": 2},
    "text_cfg": {"context_length": 12, "width": 32, "heads": 2, "layers": 1},
}


def image(path: Path, width: int, height: int, seed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


def image_editing_request(root: Path) -> None:
    """Write Image Editing Request files: images of varying size, one edit of which is a crop and so smaller."""
    for split, count in (("train", 6), ("valid", 2), ("test", 2)):
        rows = []
        for n in range(count):
            name = f"{split}{n}"
            image(root / "images" / f"{name}_0.jpg", 40 + 8 * n, 48, n)
            image(root / "images" / f"{name}_1.jpg", 40 + 8 * n - 4 * (n == 1), 48, n + 50)
            rows.append({"uid": name, "img0": f"{name}_0.jpg", "img1": f"{name}_1.jpg", "sents": [f"crop number {n}"]})
        (root / f"{split}.json").write_text(json.dumps(rows))


def spot_the_diff(root: Path) -> None:
    """Write Spot-the-Diff files, with the aspect ratio of the data set's frames of 1024 x 577 to 580 pixels."""
    (root / "annotations").mkdir(parents=True)
    for start, split, count in ((0, "train", 6), (100, "val", 2), (200, "test", 2)):
        rows = []
        for n in range(start, start + count):
            for ending in ("", "_2"):
                image(root / "resized_images" / f"{n}{ending}.png", 64, 36 + n % 4, n + len(ending))
            rows.append({"img_id": str(n), "sentences": [f"person {n} left", "there are no differences"]})
        (root / "annotations" / f"{split}.json").write_text(json.dumps(rows))


def clevr_change(root: Path) -> None:
    numbers = {"train": [0, 1, 2], "val": [3], "test": [4]}
    every = [number for part in numbers.values() for number in part]
    for n in every:
        for side, (folder, label) in enumerate(
            (("images", "default"), ("sc_images", "semantic"), ("nsc_images", "nonsemantic"))
        ):
            image(root / folder / f"CLEVR_{label}_{n:06d}.png", 48, 32, 3 * n + side)
    names = [f"CLEVR_default_{n:06d}.png" for n in every]
    for file, said in (("change", "cube {} moved"), ("no_change", "nothing was modified")):
        captions = {name: [said.format(place)] for place, name in enumerate(names)}
        (root / f"{file}_captions.json").write_text(json.dumps(captions))
    (root / "splits.json").write_text(json.dumps(numbers))
    kinds: dict[str, list[str]] = {kind: [] for kind in ("color", "material", "add", "drop", "move")}
    kinds["move"] = [f"{n:06d}.png" for n in every]
    (root / "type_mapping.json").write_text(json.dumps(kinds))


MAKERS = {
    "image_editing_request": image_editing_request,
    "spot_the_diff": spot_the_diff,
    "clevr_change": clevr_change,
}


def run_stages_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run stages in this process and in a folder, since a new process for each takes seconds."""
    monkeypatch.chdir(tmp_path)
    stages_here(monkeypatch)
    return tmp_path


def run(recipe: str, out: Path, **keys: Any) -> None:
    given = [part for key, value in keys.items() for part in (f"--{key}", json.dumps(value))]
    assert main(["run", str(PAPER / f"{recipe}.yaml"), "--out", str(out), *given]) == 0


def best(out: Path, stage: str) -> Path:
    return out / json.loads((out / stage / "stage.json").read_text())["best"]
