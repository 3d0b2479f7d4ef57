"""Judges of images and answers: what they reply, and how it is used."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.toy_stages import Canned, pair_of

from lightning_idc.methods.img_diff.judging import EvaluationSet, NaturalImages, RateAnswers
from lightning_idc.methods.img_diff.prompts import UNNATURAL_FILTER
from lightning_idc.synthesis.models.base import VisionLanguageModel
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import SamplePhotos, Sentences


class Says(VisionLanguageModel):
    def __init__(self, answers: list[str]) -> None:
        super().__init__()
        self.answers = answers

    def answer(self, images: list[list[torch.Tensor]], prompts: list[str]) -> list[str]:  # type: ignore[override]
        return self.answers


def test_unnatural_image_filter_asks_about_the_joined_image() -> None:
    """A pair gets one question, and "no" anywhere in the answer drops it (unnatural_images_filter.py:161-164)."""
    asked: list[tuple[tuple[int, ...], str]] = []

    class Asked(Says):
        def answer(self, images: list[list[torch.Tensor]], prompts: list[str]) -> list[str]:  # type: ignore[override]
            asked.extend((tuple(shown[0].shape), prompt) for shown, prompt in zip(images, prompts, strict=True))
            return self.answers

    records = [pair_of(0, 1) for _ in range(5)]
    stage = NaturalImages(Asked(["Yes.", "no", "No, it is distorted", "Perhaps", "yes, but not so"]))
    reasons = [r.dropped and r.dropped["reason"] for r in stage.transform(records)]
    assert reasons == [None, "unnatural image", "unnatural image", None, "unnatural image"]
    assert asked == [((3, 40, 40 + 20 + 40), UNNATURAL_FILTER)] * 5


def test_embedded_filter_rejects_flat_images_and_noise() -> None:
    photo = next(iter(SamplePhotos().names))
    real = SamplePhotos().record(SamplePhotos().names.index(photo)).image("image")
    noise = torch.randint(256, real.shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    records = []
    for after in (real, noise, torch.full_like(real, 90)):
        record = Record("r")
        record.decoded = {"before": real, "after": after}
        records.append(record)
    made = NaturalImages().transform(records)
    assert [r.dropped and r.dropped["value"] for r in made] == [None, "no", "no"]


def test_evaluation_set_is_sampled_by_id_and_rated_0_to_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Described(Sentences):
        def record(self, index: int) -> Record:
            area = {"box": [0, 0, 1, 1], "similarity": 0.1, "difference": "a was replaced by b", "dropped": None}
            return Record(f"{index:03}", {"areas": [area, {**area, "similarity": 0.5, "difference": "other"}]})

    store = run(EvaluationSet(6), Described([str(i) for i in range(20)]), tmp_path / "a", batch_size=3, shard_size=6)
    drawn = [r for r in store if r.dropped is None]
    assert len(drawn) == 6 and {r.facts["truth"] for r in drawn} == {"a was replaced by b"}
    for record in drawn:
        record.facts["answer"] = "?"
    judge = RateAnswers(Canned(["3", "Rating: 2", "0", "4", "two", "2.5"]))
    rated = judge.transform(drawn)
    assert [r.facts.get("rating") for r in rated] == [3, 2, 0, None, None, None]
    assert rated[3].dropped and rated[3].dropped["reason"] == "no rating in the reply"
