"""Questions to models: is a picture natural (section 15), what differs, and how right is an answer (section 14)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_idc.methods.img_diff.filtering import kept
from lightning_idc.methods.img_diff.prompts import RELEASED_QUESTION, UNNATURAL_FILTER
from lightning_idc.synthesis.drawing import BAR, draw_box, side_by_side
from lightning_idc.synthesis.models.base import TextModel, VisionLanguageModel
from lightning_idc.synthesis.models.embedded import WordEncoder
from lightning_idc.synthesis.records import Record, record_seed
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordSource, RecordStore

RATING = (
    "Compare an answer with the true description of the difference between two images. Rate the answer from 0 (wrong) "
    "to 3 (the same meaning). Reply with the number only.\nTrue description: {truth}\nAnswer: {answer}\nRating:"
)
BEST = 3
_ANSWERED = re.compile(r"True description: (?P<truth>.*?)\nAnswer: (?P<answer>.*?)\nRating:", re.DOTALL)


class PictureCheck(VisionLanguageModel):
    """Says without weights whether a picture shows anything: no to flat ones and to noise. It cannot see bad taste.

    Args:
        contrast: least deviation of the brightness, in steps of 255.
        smoothness: least correlation of neighbouring pixels.
    """

    def __init__(self, contrast: float = 4.0, smoothness: float = 0.5) -> None:
        super().__init__()
        self.contrast, self.smoothness = contrast, smoothness

    def settings(self) -> dict[str, Any]:
        return {"model": "PictureCheck", "contrast": self.contrast, "smoothness": self.smoothness}

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        return ["yes" if all(self._shows_something(part) for part in sides(shown)) else "no" for shown in images]

    def _shows_something(self, image: Tensor) -> bool:
        gray = image.float().mean(0)
        if gray.std() < self.contrast:
            return False
        neighbours = torch.stack([gray[:, :-1].flatten(), gray[:, 1:].flatten()])
        return bool(torch.corrcoef(neighbours)[0, 1] > self.smoothness)


def sides(images: Sequence[Tensor]) -> list[Tensor]:
    """The pictures that were shown, a pair with a black bar in the middle taken apart."""
    found: list[Tensor] = []
    for image in images:
        width = (image.shape[2] - BAR) // 2
        paired = width > 0 and not image[:, :, width : width + BAR].any()
        found += [image[:, :, :width], image[:, :, width + BAR :]] if paired else [image]
    return found


class WordJudge(TextModel):
    """Rates without weights, by the words that an answer shares with the truth.

    Args:
        steps: cosines of their content words from which on an answer is worth 1, 2 and 3.
    """

    def __init__(self, steps: tuple[float, float, float] = (0.25, 0.6, 0.95)) -> None:
        super().__init__()
        self.steps, self.encoder = tuple(steps), WordEncoder()

    def settings(self) -> dict[str, Any]:
        return {"model": "WordJudge", "steps": list(self.steps)}

    def answer(self, prompts: Sequence[str], seeds: Sequence[int]) -> list[str]:
        found = [_ANSWERED.search(prompt) for prompt in prompts]
        texts = [["", ""] if match is None else [match["truth"], match["answer"]] for match in found]
        vectors = self.encoder.encode([text for both in texts for text in both])
        alike = (vectors[::2] * vectors[1::2]).sum(1).tolist()
        return [str(sum(value >= step for step in self.steps)) for value in alike]


class NaturalImages(PipelineStage):
    """Unnatural-image filter: one question about both pictures of a pair (the paper's model is InternVL2.5-8B).

    As in the scripts both stand in one picture with a bar between them, and a pair goes if "no" is anywhere in the
    answer.

    Args:
        model: answers with yes or no.
        prompt: the question.
        boxes: whether red boxes are drawn around the kept areas, as in the released pictures, which the scripts take.
        seed: see `PipelineStage`.
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
        self.model, self.prompt, self.boxes = model or PictureCheck(), prompt, boxes

    def settings(self) -> dict[str, Any]:
        return {"model": self.model.settings(), "question": self.prompt, "boxes": self.boxes}

    def process(self, records: list[Record]) -> list[Record]:
        shown = [[side_by_side(*self._pictures(record))] for record in records]
        for record, answer in zip(records, self.model.answer(shown, [self.prompt] * len(shown)), strict=True):
            if "no" in answer.lower():
                record.drop("unnatural image", answer, "no 'no' in the answer")
        return records

    def _pictures(self, record: Record) -> tuple[Tensor, Tensor]:
        before, after = record.pair()
        for area in kept(record.facts.get("areas") or []) if self.boxes else []:
            before, after = draw_box(before, area["box"]), draw_box(after, area["box"])
        return before, after


class EvaluationSet(PipelineStage):
    """Keeps a fixed number of pairs, drawn by their ids alone, with their most different area as the truth.

    Args:
        size: number of pairs; the paper's set has 500.
        seed: of the draw.
    """

    def __init__(self, size: int = 500, seed: int = 0) -> None:
        super().__init__(seed)
        self.size = size
        self._chosen: set[str] = set()

    def settings(self) -> dict[str, Any]:
        return {"size": self.size}

    def prepare(self, source: RecordSource) -> None:
        ids = [record.id for record in map(source.record, range(len(source))) if record.dropped is None]
        self._chosen = set(sorted(ids, key=lambda id: record_seed(self.seed, id).random())[: self.size])

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            if record.id not in self._chosen:
                record.drop("not drawn", None, f"{self.size} pairs")
            else:
                area = min(kept(record.facts["areas"]), key=lambda area: area["similarity"])
                record.facts["areas"], record.facts["truth"] = [area], area["difference"]
        return records


class AnswerPairs(PipelineStage):
    """Asks the model that is to be rated what differs inside the red box; writes the fact ``answer``.

    Both pictures stand in one, with a bar between them, and the question is that of the released data.

    Args:
        model: is asked.
        seed: see `PipelineStage`.
    """

    reads = ("before", "after")

    def __init__(self, model: VisionLanguageModel, seed: int = 0) -> None:
        super().__init__(seed)
        self.model = model

    def settings(self) -> dict[str, Any]:
        return {"model": self.model.settings(), "question": RELEASED_QUESTION}

    def process(self, records: list[Record]) -> list[Record]:
        shown = []
        for record in records:
            before, after = (draw_box(image, record.facts["areas"][0]["box"]) for image in record.pair())
            shown.append([side_by_side(before, after)])
        for record, answer in zip(records, self.model.answer(shown, [RELEASED_QUESTION] * len(shown)), strict=True):
            record.facts["answer"] = " ".join(answer.split())
        return records


class RateAnswers(PipelineStage):
    """Rates the fact ``answer`` against ``truth`` from 0 to 3; the sum of 500 pairs is at most 1,500.

    Args:
        judge: the paper's is InternLM2.5; an answer without a number from 0 to 3 is counted and not rated.
        seed: see `PipelineStage`.
    """

    def __init__(self, judge: TextModel | None = None, seed: int = 0) -> None:
        super().__init__(seed)
        self.judge = judge or WordJudge()

    def settings(self) -> dict[str, Any]:
        return {"judge": self.judge.settings(), "instruction": RATING}

    def process(self, records: list[Record]) -> list[Record]:
        prompts = [RATING.format(truth=record.facts["truth"], answer=record.facts["answer"]) for record in records]
        seeds = [int(record_seed(self.seed, record.id).integers(2**31)) for record in records]
        for record, answer in zip(records, self.judge.answer(prompts, seeds), strict=True):
            value = rating(answer)
            if value is None:
                record.drop("rating not understood", answer, f"0 to {BEST}")
            else:
                record.facts["rating"] = value
        return records

    def finish(self, store: RecordStore) -> None:
        values = [record.facts["rating"] for record in store if record.dropped is None]
        print(f"{sum(values)} of {BEST * len(values)} points for {len(values)} answers", flush=True)


def rating(answer: str) -> int | None:
    """The first whole number of an answer, if it is 0 to 3."""
    match = re.search(r"-?\d+(?:\.\d+)?", answer)
    return int(match[0]) if match is not None and match[0] in ("0", "1", "2", "3") else None
