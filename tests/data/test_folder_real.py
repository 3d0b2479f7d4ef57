"""FolderPairs on real photographs and on CLEVR-Change. Oracle: the manifests that came with the images."""

from __future__ import annotations

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from lightning_idc.data.benchmarks.folder import FolderPairs


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mgie_qual", "clevr_change"])
@pytest.mark.parametrize("form", ["csv", "jsonl", "rows"])
def test_real_pairs(shared: Path, tmp_path: Path, name: str, form: str) -> None:
    folder = shared / "realdata" / name
    if not folder.is_dir():
        pytest.skip(f"{name} is not beside this checkout")
    root = tmp_path / name
    shutil.copytree(folder, root)
    pairs: list[dict[str, Any]] = json.loads((root / "manifest.json").read_text())["pairs"]
    if form == "jsonl":
        rows = [{key: value for key, value in p.items() if key != "split"} for p in pairs]  # other keys are ignored
        (root / "pairs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    else:
        cells = [(p, [json.dumps(p["captions"])] if form == "csv" else p["captions"]) for p in pairs]
        with (root / "pairs.csv").open("w", newline="", encoding="utf-8-sig") as file:
            out = csv.writer(file)
            out.writerow(["id", "before", "after", "captions" if form == "csv" else "caption"])
            out.writerows([p["id"], p["before"], p["after"], cell] for p, texts in cells for cell in texts)
    data = FolderPairs(root, shares=(1.0, 0.0, 0.0), image_size=(40, 60), batch_size=len(pairs))
    source = data.pairs_of("train")
    assert list(source.ids) == [p["id"] for p in pairs]
    assert [source.captions(i) for i in range(len(pairs))] == [
        [" ".join(c.split()) for c in p["captions"]] for p in pairs
    ]
    if form == "jsonl":
        batch = next(iter(data.train_dataloader()))
        assert batch["images"].shape == (len(pairs), 2, 3, 40, 60)
        loaded = FolderPairs(root, shares=(1.0, 0.0, 0.0), on_bad="skip").pairs_of("train").load(0)
        with Image.open(root / pairs[0]["before"]) as image:
            assert loaded.before.shape == (3, image.height, image.width)
