"""Model-based checks: the unnatural-image filter (section 15) and the evaluation of models (section 14).

The evaluation has three stages:

1. `EvaluationSet` samples 500 pairs with one box each,
2. `AnswerPairs` asks the model under evaluation what differs inside the box,
3. `RateAnswers` rates each answer from 0 to 3 with a language model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.methods.img_diff.filtering import accepted
from lightning_idc.methods.img_diff.prompts import RELEASED_QUESTION, UNNATURAL_FILTER
from lightning_idc.synthesis.drawing import BAR, draw_box, side_by_side
from lightning_idc.synthesis.models.base import TextModel, VisionLanguageModel
from lightning_idc.synthesis.models.embedded import WordEncoder
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordSource, RecordStore
from lightning_idc.utils.bounds import PositiveInt, check_arguments

RATING = (
    "Compare an answer with the true description of the difference between two images. Rate the answer from 0 (wrong) "
    "to 3 (the same meaning). Reply with the number only.\nTrue description: {truth}\nAnswer: {answer}\nRating:"
)
MAX_RATING = 3
_RATING_PROMPT = re.compile(r"True description: (?P<truth>.*?)\nAnswer: (?P<answer>.*?)\nRating:", re.DOTALL)


class ImageCheck(VisionLanguageModel):
    """Answers, without a trained model, whether an image has content: "no" for flat images and noise.

    Args:
        contrast: minimum standard deviation of the brightness, in steps of 255.
        smoothness: minimum correlation of neighbouring pixels.
    """

    def __init__(self, contrast: float = 4.0, smoothness: float = 0.5) -> None:
        super().__init__()
        self.contrast, self.smoothness = contrast, smoothness

    def settings(self) -> dict[str, Any]:
        return {"model": "ImageCheck", "contrast": self.contrast, "smoothness": self.smoothness}

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        return ["yes" if all(self._has_content(image) for image in split_pairs(row)) else "no" for row in images]

    def _has_content(self, image: Tensor) -> bool:
        gray = image.float().mean(0)
        if gray.std() < self.contrast:
            return False
        neighbours = torch.stack([gray[:, :-1].flatten(), gray[:, 1:].flatten()])
        return bool(torch.corrcoef(neighbours)[0, 1] > self.smoothness)


def split_pairs(images: Sequence[Tensor]) -> list[Tensor]:
    """Split each image with a black bar in the middle into the two images of a pair."""
    singles: list[Tensor] = []
    for image in images:
        width = (image.shape[2] - BAR) // 2
        is_pair = width > 0 and not image[:, :, width : width + BAR].any()
        singles += [image[:, :, :width], image[:, :, width + BAR :]] if is_pair else [image]
    return singles


class WordJudge(TextModel):
    """Rates answers, without a trained model, by the words that they share with the ground truth.

    Args:
        steps: minimum cosines of the content words for the ratings 1, 2 and 3.
    """

    def __init__(self, steps: tuple[float, float, float] = (0.25, 0.6, 0.95)) -> None:
        super().__init__()
        self.steps, self.encoder = tuple(steps), WordEncoder()

    def settings(self) -> dict[str, Any]:
        return {"model": "WordJudge", "steps": list(self.steps)}

    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        matches = [_RATING_PROMPT.search(prompt) for prompt in prompts]
        texts = [["", ""] if match is None else [match["truth"], match["answer"]] for match in matches]
        vectors = self.encoder.encode([text for pair in texts for text in pair])
        similarities = (vectors[::2] * vectors[1::2]).sum(1).tolist()
        return [str(sum(value >= step for step in self.steps)) for value in similarities]


class NaturalImages(PipelineStage):
    """Unnatural-image filter: one question about both images of a pair (InternVL2.5-8B in the paper).

    As in the scripts, the images are side by side with a bar between them, and a pair is dropped if its answer contains
    "no".

    Args:
        model: vision-language model that answers yes or no.
        prompt: question.
        boxes: whether red boxes are drawn around the accepted areas, as in the released images of the scripts.
        seed: random seed, as in `PipelineStage`.
    """

    reads = ("before", "after")

    def __init__(
        self,
        model: VisionLanguageModel | None = None,
        prompt: str = UNNATURAL_FILTER,
        boxes: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        self.model, self.prompt, self.boxes = model or ImageCheck(), prompt, boxes

    def settings(self) -> dict[str, Any]:
        return {"model": self.model.settings(), "question": self.prompt, "boxes": self.boxes}

    def process(self, records: list[Record]) -> list[Record]:
        images = [[side_by_side(*self._boxed_pair(record))] for record in records]
        for record, answer in zip(records, self.model.answer(images, [self.prompt] * len(images)), strict=True):
            if "no" in answer.lower():
                record.drop("unnatural image", answer, "no 'no' in the answer")
        return records

    def _boxed_pair(self, record: Record) -> tuple[Tensor, Tensor]:
        before, after = record.pair()
        for area in accepted(record.facts.get("areas") or []) if self.boxes else []:
            before, after = draw_box(before, area["box"]), draw_box(after, area["box"])
        return before, after


class EvaluationSet(PipelineStage):
    """Samples a fixed number of pairs, with the most different area as the ground truth.

    Args:
        size: number of pairs; the paper's set has 500.
        seed: random seed; the sample depends only on it and the records' ids.
    """

    def __init__(self, size: PositiveInt = 500, seed: int = 0) -> None:
        check_arguments(EvaluationSet.__init__, locals())
        super().__init__(seed)
        self.size = size
        self._sampled: set[str] = set()

    def settings(self) -> dict[str, Any]:
        return {"size": self.size}

    def prepare(self, source: RecordSource) -> None:
        ids = [record.id for record in map(source.record, range(len(source))) if record.dropped is None]
        self._sampled = set(sorted(ids, key=lambda id: record_generator(self.seed, id).random())[: self.size])

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            if record.id not in self._sampled:
                record.drop("not sampled", None, f"{self.size} pairs")
            else:
                area = min(accepted(record.facts["areas"]), key=lambda area: area["similarity"])
                record.facts["areas"], record.facts["truth"] = [area], area["difference"]
        return records


class AnswerPairs(PipelineStage):
    """Asks the model under evaluation what differs inside the red box; writes the fact ``answer``.

    The images are side by side with a bar between them; the question is that of the released data.

    Args:
        model: model under evaluation.
        seed: random seed, as in `PipelineStage`.
    """

    reads = ("before", "after")

    def __init__(self, model: VisionLanguageModel, seed: int = 0) -> None:
        super().__init__(seed)
        self.model = model

    def settings(self) -> dict[str, Any]:
        return {"model": self.model.settings(), "question": RELEASED_QUESTION}

    def process(self, records: list[Record]) -> list[Record]:
        images = []
        for record in records:
            before, after = (draw_box(image, record.facts["areas"][0]["box"]) for image in record.pair())
            images.append([side_by_side(before, after)])
        for record, answer in zip(records, self.model.answer(images, [RELEASED_QUESTION] * len(images)), strict=True):
            record.facts["answer"] = " ".join(answer.split())
        return records


class RateAnswers(PipelineStage):
    """Rates the fact ``answer`` against ``truth`` from 0 to 3; the sum of 500 pairs is at most 1,500.

    Args:
        judge: language model; InternLM2.5 in the paper. A reply without a number from 0 to 3 drops the record.
        seed: random seed, as in `PipelineStage`.
    """

    def __init__(self, judge: TextModel | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        self.judge = judge or WordJudge()

    def settings(self) -> dict[str, Any]:
        return {"judge": self.judge.settings(), "instruction": RATING}

    def process(self, records: list[Record]) -> list[Record]:
        prompts = [RATING.format(truth=record.facts["truth"], answer=record.facts["answer"]) for record in records]
        seeds = [int(record_generator(self.seed, record.id).integers(2**31)) for record in records]
        for record, reply in zip(records, self.judge.answer(prompts, seeds), strict=True):
            value = rating(reply)
            if value is None:
                record.drop("no rating in the reply", reply, f"0 to {MAX_RATING}")
            else:
                record.facts["rating"] = value
        return records

    def finish(self, store: RecordStore) -> None:
        ratings = [record.facts["rating"] for record in store if record.dropped is None]
        print(f"{sum(ratings)} of {MAX_RATING * len(ratings)} points for {len(ratings)} answers", flush=True)


def rating(reply: str) -> int | None:
    """First number of a judge's reply, if it is 0, 1, 2 or 3."""
    match = re.search(r"-?\d+(?:\.\d+)?", reply)
    return int(match[0]) if match is not None and match[0] in ("0", "1", "2", "3") else None
