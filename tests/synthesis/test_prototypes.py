"""The captioner without weights names objects of the library that was pasted, and rejects everything else."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from benchmarks.synthesis import own_cutouts, pasted_and_described, rightly_named
from lightning_idc.images.resize import resize
from lightning_idc.methods.img_diff.areas import DifferenceAreas, PairSimilarity
from lightning_idc.methods.img_diff.edits import PasteEdits
from lightning_idc.methods.namc.descriptions import Descriptions
from lightning_idc.synthesis.library import library_identity
from lightning_idc.synthesis.models.base import VisionLanguageModel
from lightning_idc.synthesis.models.chat import PromptedCaptioner
from lightning_idc.synthesis.models.prototypes import NearestPrototype
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import ImageFolder, SamplePhotos
from lightning_idc.synthesis.stages import Sequential

pytest.importorskip("cv2")  # here, since importing it changes the environment


@pytest.fixture(scope="module")
def cutouts(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("skimage")
    return str(own_cutouts(tmp_path_factory.mktemp("cutouts")))


def made(library: str | None, known: str | None, folder: Path) -> list[Record]:
    return list(run(pasted_and_described(library, known), SamplePhotos(copies=10), folder, shard_size=30))


@pytest.mark.slow
def test_cutouts_of_the_library_are_recognised(cutouts: str, tmp_path: Path) -> None:
    records = made(cutouts, cutouts, tmp_path / "a")
    right, total = rightly_named(records)
    assert total >= 20 and right / total >= 0.8, f"{right} of {total} kept boxes right"


@pytest.mark.slow
def test_images_of_another_library_are_rejected(cutouts: str, tmp_path: Path) -> None:
    records = made(cutouts, None, tmp_path / "a")
    reasons = {r.dropped["reason"] for r in records if r.dropped is not None}
    assert all(record.dropped is not None for record in records), "what is not known is not named"
    assert "not supported by the model" in reasons
    text = next(
        r.dropped["value"] for r in records if r.dropped and r.dropped["reason"] == "not supported by the model"
    )
    assert "library 'rendered'" in text and library_identity(cutouts) in text


@pytest.mark.slow
def test_real_pairs_are_rejected(shared: Path, tmp_path: Path) -> None:
    folder = shared / "realdata" / "aurora_magicbrush"
    if not folder.is_dir():
        pytest.skip("aurora_magicbrush is not in the shared folder")
    store = run(Sequential([PairsOf(), Descriptions()]), ImageFolder(str(folder)), tmp_path / "a", limit=12)
    assert store.counts()[0] == 0 and store.counts()[1].keys() == {"not supported by the model"}


class PairsOf(PasteEdits):
    """An image and its mirror image as a pair, without a pasted object."""

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            record.put("before", record.image("image"))
            record.put("after", record.image("image").flip(2))
            record.facts["captions"] = ["a", "b"]
        return records


@pytest.mark.slow
def test_unequal_images_are_compared_at_the_first_size(tmp_path: Path) -> None:
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


def test_background_caption_is_a_setting() -> None:
    assert NearestPrototype(background="nothing").settings() != NearestPrototype().settings()


def test_min_side_is_a_setting() -> None:
    class Says(VisionLanguageModel):
        def answer(self, images: list[list[Tensor]], prompts: list[str]) -> list[str]:  # type: ignore[override]
            return [str(tuple(shown[0].shape[1:])) for shown in images]

    picture = torch.zeros(3, 20, 60, dtype=torch.uint8)
    usual, large = PromptedCaptioner(Says()), PromptedCaptioner(Says(), min_side=224)
    assert usual.caption([picture]) != large.caption([picture]) and usual.settings() != large.settings()
