"""Object removal: what is erased from which image, and the prompts about it (section 19)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lightning_idc.data.benchmarks.img_diff import ImgDiff
from lightning_idc.methods.img_diff.prompts import REGION_CAPTION
from lightning_idc.methods.img_diff.questions import PromptedRegions
from lightning_idc.methods.img_diff.removal import EraseObjects, ReleaseRemoval, add_question
from lightning_idc.synthesis.models.base import Inpainter, Region, Segmenter, VisionLanguageModel
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.release import ReleasePairs
from lightning_idc.synthesis.run import run

pytest.importorskip("cv2")  # here, since importing it changes the environment

PLACES = [(4 + 24 * n, 8, 20 + 24 * n, 24) for n in range(5)]


class Own(Segmenter):
    """Four objects in the first image, one in the second, each with the mask of its own image."""

    asked_for_masks = False

    def regions(self, before: list[Tensor], after: list[Tensor], masks: bool = False) -> list[list[Region]]:  # type: ignore[override]
        self.asked_for_masks = masks
        return [[self._region(n) for n in range(5)] for _ in before]

    def _region(self, number: int) -> Region:
        mask = torch.zeros(32, 128, dtype=torch.bool)
        x1, y1, x2, y2 = PLACES[number]
        mask[y1:y2, x1:x2] = True
        return Region(PLACES[number], 0.9, mask, 1 if number == 4 else 0)


class Paints(Inpainter):
    """Paints masked pixels white."""

    def fill(self, images: list[Tensor], masks: list[Tensor], seeds: list[int]) -> list[Tensor]:  # type: ignore[override]
        return [
            torch.where(mask, torch.full_like(image, 255), image) for image, mask in zip(images, masks, strict=True)
        ]


def pair() -> Record:
    """Return a pair with four objects of decreasing contrast in the first image only, and one in the second only."""
    noise = torch.randint(40, (2, 3, 32, 128), generator=torch.Generator().manual_seed(0), dtype=torch.uint8) + 60
    for number, (x1, y1, x2, y2) in enumerate(PLACES):
        side = 1 if number == 4 else 0
        colour = torch.tensor([250 - 20 * number, 20, 10], dtype=torch.uint8)
        noise[side, :, y1:y2, x1:x2] = colour[:, None, None]
    record = Record("p", {"edit": "replace"}, [{"stage": "x"}])
    record.put("before", noise[0])
    record.put("after", noise[1])
    return record


def test_at_most_three_objects_are_removed_per_image() -> None:
    record, segmenter = pair(), Own()
    before, after = record.image("before"), record.image("after")
    made = EraseObjects(segmenter, inpainter=Paints()).transform([record])
    assert segmenter.asked_for_masks
    sides = [child.facts["erased_from"] for child in made]
    assert sides == ["before"] * 3 + ["after"], "three of four in the first, and the one of the second"
    for child in made:
        x1, y1, x2, y2 = child.facts["areas"][0]["box"]
        there, gone = child.image("with"), child.image("without")
        assert torch.equal(there, before if child.facts["erased_from"] == "before" else after)
        changed = (there != gone).any(0)
        assert changed[y1:y2, x1:x2].all() and changed.sum() == (y2 - y1) * (x2 - x1), "its own mask, nothing else"
        assert tuple(child.facts["areas"][0]["box"]) in (
            PLACES[:4] if child.facts["erased_from"] == "before" else PLACES[4:]
        )


def test_one_of_overlapping_objects_is_removed() -> None:
    class Twice(Own):
        def regions(self, before: list[Tensor], after: list[Tensor], masks: bool = False) -> list[list[Region]]:  # type: ignore[override]
            (found,) = super().regions(before, after, masks)
            return [
                [found[0], Region((5, 8, 20, 24), 0.8, found[0].mask, 0), Region(PLACES[2], 0.09, found[2].mask, 0)]
            ]

    made = EraseObjects(Twice(), inpainter=Paints()).transform([pair()])
    assert len(made) == 1, "one of two that overlap by more than half, and none with a confidence of 0.1 or less"


def test_derived_pairs_are_in_one_split(tmp_path: Path) -> None:
    names = {}
    for number in range(12):
        record = pair()
        record.id = f"p{number}"
        release = ReleasePairs(str(tmp_path), "answer", (0.4, 0.3, 0.3))
        for child in EraseObjects(Own(), inpainter=Paints()).transform([record]):
            names.setdefault(record.id, set()).add(release._split(child))
    assert {len(splits) for splits in names.values()} == {1}
    assert len(set.union(*names.values())) == 3


def test_images_are_resized_first(tmp_path: Path) -> None:
    class Small(Own):
        def regions(self, before: list[Tensor], after: list[Tensor], masks: bool = False) -> list[list[Region]]:  # type: ignore[override]
            assert {tuple(image.shape) for image in [*before, *after]} == {(3, 64, 64)}
            return [[Region((0, 0, 64, 64), 1.0, torch.ones(64, 64, dtype=torch.bool))] for _ in before]

    made = EraseObjects(Small(), inpainter=Paints(), size=64).transform([pair()])
    assert [child.facts["erased_from"] for child in made] == ["before", "after"], "of both where it is in both"
    assert {tuple(child.facts["size"]) for child in made} == {(64, 64)}


def test_object_is_described_in_the_full_image_with_a_pixel_box() -> None:
    """Section 19.2.4, in the words of generate_inpaint.py:374."""
    seen: list[tuple[tuple[int, ...], str]] = []

    class Asked(VisionLanguageModel):
        def answer(self, images: list[list[Tensor]], prompts: list[str]) -> list[str]:  # type: ignore[override]
            seen.extend((tuple(shown[0].shape), prompt) for shown, prompt in zip(images, prompts, strict=True))
            return ["a thing"] * len(prompts)

    captioner = PromptedRegions(Asked(), coordinates="pixels")
    captioner.caption_regions([torch.zeros(3, 512, 512, dtype=torch.uint8)], [[16, 32, 128, 256]])
    PromptedRegions(Asked()).caption_regions([torch.zeros(3, 512, 512, dtype=torch.uint8)], [[16, 32, 128, 256]])
    assert seen == [
        ((3, 512, 512), REGION_CAPTION.format(x1="16.0", y1="32.0", x2="128.0", y2="256.0")),
        ((3, 512, 512), REGION_CAPTION.format(x1="0.03", y1="0.06", x2="0.25", y2="0.50")),
    ]


def test_questions_round_trip(tmp_path: Path) -> None:
    class Made:
        fingerprint = "made"

        def __len__(self) -> int:
            return 4

        def record(self, index: int) -> Record:
            (record, *_) = EraseObjects(Own(), inpainter=Paints()).transform([pair()])
            record.id = f"p{index}/0"
            record.facts["areas"][0]["captions"] = ["a red block"]
            add_question(record, object_left=index % 2 == 0)
            return record

    run(ReleaseRemoval(str(tmp_path / "release")), Made(), tmp_path / "made")
    written = json.loads((tmp_path / "release" / "img_diff_object_removal.json").read_text())
    data = ImgDiff(tmp_path / "release", part="removal", official=False, shares=(1.0, 0.0, 0.0))
    pairs = data.pairs_of("train")
    assert [pairs.captions(index) for index in range(4)] == [["A"], ["B"], ["A"], ["B"]]
    for index in range(4):
        sample = pairs.load(index)
        assert sample.meta["question"] == written[index]["conversations"][0]["value"]
        assert 'has the object related to "a red block" within the red bounding box?' in sample.meta["question"]
        with_object = sample.before if index % 2 == 0 else sample.after
        assert with_object[0, 16, 12] > 200 and with_object[1, 16, 12] < 80
