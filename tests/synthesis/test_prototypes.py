"""The captioner without weights: it knows the library that was pasted, and says nothing about anything else."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from lightning_idc.core.images import resize
from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
from lightning_idc.methods.img_diff.edits import PasteEdits
from lightning_idc.methods.img_diff.filtering import kept
from lightning_idc.methods.img_diff.sentences import DifferenceCaptions, RegionCaptions
from lightning_idc.methods.namc.descriptions import Descriptions
from lightning_idc.synthesis.library import library_identity
from lightning_idc.synthesis.pipeline import run
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.slots.prototypes import NearestPrototype
from lightning_idc.synthesis.sources import ImageFolder, SamplePhotos
from lightning_idc.synthesis.stages import Sequential

pytest.importorskip("cv2")  # here, since importing it changes the environment


@pytest.fixture(scope="module")
def cutouts(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Cut-outs of one's own: parts of photographs in five outlines, which no renderer has made."""
    pytest.importorskip("skimage")
    folder = tmp_path_factory.mktemp("cutouts")
    y, x = np.mgrid[-1:1:96j, -1:1:96j]
    outlines = {
        "leaf": (abs(x) < 0.95 * np.cos(y * 1.5) ** 2) & (abs(y) < 0.95),
        "ring": (x**2 + y**2 < 0.95) & (x**2 + y**2 > 0.2),
        "star": x**2 + y**2 < (0.6 + 0.3 * np.cos(5 * np.arctan2(y, x))) ** 2,
        "boat": (y > 0) & (y < 0.8) & (abs(x) < 0.95 - 0.5 * y),
        "moon": (x**2 + y**2 < 0.9) & ((x - 0.5) ** 2 + y**2 > 0.5),
    }
    photos = SamplePhotos()
    for number, (name, inside) in enumerate(outlines.items()):
        photo = photos.record(number % len(photos)).image("image").permute(1, 2, 0).numpy()
        part = photo[60:156, 60:156]
        rgba = np.dstack([part, inside.astype(np.uint8) * 255])
        Image.fromarray(rgba).save(folder / f"{name}.png")
    return str(folder)


def made(library: str | None, known: str | None, folder: Path) -> list[Record]:
    chain = [
        PasteEdits(size=128, library=library, kinds=["replace", "remove", "add"]),
        PairSimilarity(filters="embedded"),
        DifferenceAreas(filters="embedded"),
        RegionCaptions(NearestPrototype(known), filters="embedded"),
        DifferenceCaptions(),
    ]
    return list(run(Sequential(chain), SamplePhotos(copies=10), folder, shard_size=30))


@pytest.mark.slow
def test_own_cutouts_are_recognised(cutouts: str, tmp_path: Path) -> None:
    records = made(cutouts, cutouts, tmp_path / "a")
    right = total = 0
    for record in records:
        for area in kept(record.facts.get("areas") or []) if record.dropped is None else []:
            expected = ["plain background" if noun is None else f"a {noun}" for noun in record.facts["nouns"]]
            right, total = right + (area["captions"] == expected), total + 1
    assert total >= 20 and right / total >= 0.8, f"{right} of {total} kept boxes right"


@pytest.mark.slow
def test_pictures_of_another_library_are_refused(cutouts: str, tmp_path: Path) -> None:
    records = made(cutouts, None, tmp_path / "a")
    reasons = {r.dropped["reason"] for r in records if r.dropped is not None}
    assert all(record.dropped is not None for record in records), "what is not known is not named"
    assert "unknown to the model" in reasons
    text = next(r.dropped["value"] for r in records if r.dropped and r.dropped["reason"] == "unknown to the model")
    assert "library 'rendered'" in text and library_identity(cutouts) in text


def test_real_pairs_are_refused(shared: Path, tmp_path: Path) -> None:
    folder = shared / "realdata" / "aurora_magicbrush"
    if not folder.is_dir():
        pytest.skip("aurora_magicbrush is not in the shared folder")
    store = run(Sequential([PairsOf(), Descriptions()]), ImageFolder(str(folder)), tmp_path / "a", limit=12)
    assert store.counts()[0] == 0 and store.counts()[1].keys() == {"unknown to the model"}


class PairsOf(PasteEdits):
    """A picture twice, which nobody here pasted anything into."""

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            record.put("before", record.image("image"))
            record.put("after", record.image("image").flip(2))
            record.facts["captions"] = ["a", "b"]
        return records


def test_unequal_pictures_are_compared_in_the_size_of_the_first(tmp_path: Path) -> None:
    """MagicBrush has pairs of 512 and 500 pixels; the second is resized, as generate_bbox.py:100 does."""
    run(PasteEdits(size=128), SamplePhotos(copies=2), tmp_path / "pairs", shard_size=16)

    class Unequal(PasteEdits):
        reads = ("before", "after")

        def process(self, records: list[Record]) -> list[Record]:
            for record in records:
                record.put("after", resize(record.image("after"), (150, 120)))
            return records

    chain = [Unequal(), PairSimilarity(filters="embedded"), DifferenceAreas(filters="embedded")]
    made = run(Sequential(chain), str(tmp_path / "pairs"), tmp_path / "a", shard_size=16)
    assert "error" not in made.counts()[1] and made.counts()[0] > 0, made.counts()
