"""Implicit-change descriptions (NAMC, Appendix D.2): a description of each image, in a template that can be parsed.

1. :class:`ImageParagraphs` describes each image of a pair separately.
2. :class:`Descriptions` asks a vision-language model to fill the template, and parses its answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from lightning_idc.data.benchmarks.implicit_change import (
    VERBS,
    WITHIN_LIMIT,
    Rejection,
    names_object,
    object_descriptions,
    repetitions,
    unquoted,
)
from lightning_idc.synthesis.models.base import ImageCaptioner, VisionLanguageModel, crop
from lightning_idc.synthesis.models.contours import DifferenceContours
from lightning_idc.synthesis.models.prototypes import NearestPrototype
from lightning_idc.synthesis.records import Record, record_generator
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordStore
from lightning_idc.utils.answers import CutOff
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.files import atomic_write

TEMPLATE = (
    "The difference between the two images is that the first image {verb} [object description], "
    "while the second image {verb} [object description]."
)
_CAPTIONS = "First image could be described as: {first}. Second image could be described as: {second}. "
_STRICTLY = "Generate the description strictly according to the template: '{template}'."
_TASK = "Given the first and the second images, describe the difference between the two images. "
INSTRUCTIONS = {
    "spot_the_diff": _TASK + _CAPTIONS + "Here is the difference: {difference}. " + _STRICTLY,
    "instruct_pix2pix": (
        "Given the first image and a prompt, the second image is generated based on them. Describe the difference "
        "between the two images. Here is the prompt: {difference}. " + _CAPTIONS + _STRICTLY
    ),
    "cc3m": _TASK + _CAPTIONS + _STRICTLY,
}
"""Instructions of Appendix D.2, by the data set of the pair."""
CONVENTIONAL = (
    "Given the first and the second images, describe the change between the two images. What has changed from the "
    "first image to the second?"
)
"""Prompt without a template, for the comparison of Table 11."""
PROMPTS = {**INSTRUCTIONS, "conventional": CONVENTIONAL}
FILTER_VERSION = 2
"""Version of the rules by which answers are dropped; part of the settings, so that a store never mixes two versions."""
NEED_DIFFERENCE = ("spot_the_diff", "instruct_pix2pix")
"""Instructions that quote the data set's description of the change."""


class Descriptions(PipelineStage):
    """Describes each pair in the template with a vision-language model, and parses the answer.

    Reads ``before``, ``after``, the fact ``captions`` (one paragraph per image) and, except for CC3M, the fact
    ``difference``. Writes the facts ``description``, ``descriptions`` (one per image), ``verb`` and ``origin``. Answers
    that are not exactly one complete sentence in the template, or have no content, are dropped; the reason contains the
    answer, or the text after its first sentence.

    Args:
        model: vision-language model; Qwen2-VL-7B-Instruct in the paper.
        kind: key of :data:`PROMPTS`: one of the three instructions, or ``conventional``, which has no template.
        seed: seed for sampling the verb of the template.
    """

    reads = ("before", "after")

    def __init__(
        self,
        model: VisionLanguageModel | None = None,
        kind: Literal["spot_the_diff", "instruct_pix2pix", "cc3m", "conventional"] = "cc3m",
        seed: int = 0,
    ) -> None:
        check_arguments(Descriptions.__init__, locals())
        super().__init__(seed)
        self.model, self.kind = model or EmbeddedDescriber(), kind

    def settings(self) -> dict[str, Any]:
        return {"model": self.model.settings(), "instruction": PROMPTS[self.kind], "filter": FILTER_VERSION}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            self.drop_unsupported(record, self.model)
        remaining = [record for record in records if record.dropped is None and self._check_facts(record)]
        verbs = [VERBS[int(record_generator(self.seed, record.id).integers(len(VERBS)))] for record in remaining]
        prompts = [instruction(self.kind, record.facts, verb) for record, verb in zip(remaining, verbs, strict=True)]
        images = [list(record.pair()) for record in remaining]
        answers = self.model.answer(images, prompts) if remaining else []
        for record, verb, answer in zip(remaining, verbs, answers, strict=True):
            record.facts["verb"], record.facts["origin"] = verb, self.kind
            self._parse_answer(record, answer)
        return records

    def _parse_answer(self, record: Record, answer: str) -> None:
        """Store an answer and its description of each image, or drop the record with the reason."""
        is_truncated = isinstance(answer, CutOff)
        if self.kind == "conventional":
            record.facts["description"] = description = " ".join(answer.split())
            if is_truncated:
                record.drop("truncated", description, WITHIN_LIMIT)
            elif not names_object(answer):
                record.drop("says nothing", description, "more than negations and auxiliaries")
            return
        record.facts["description"] = " ".join(unquoted(answer).split())
        descriptions = object_descriptions(answer, is_truncated)
        if isinstance(descriptions, Rejection):
            record.drop(descriptions.reason, descriptions.excerpt, descriptions.expected)
        else:
            record.facts["descriptions"] = list(descriptions)

    def _check_facts(self, record: Record) -> bool:
        """Whether the record has the facts that the instruction quotes; drops it otherwise."""
        if len(record.facts.get("captions") or []) != 2:
            record.drop("no captions", None, "one per image")
        elif self.kind in NEED_DIFFERENCE and not record.facts.get("difference"):
            record.drop("no difference", None, "a summary of the change, or the editing prompt")
        return record.dropped is None

    def finish(self, store: RecordStore) -> None:
        texts = (record.facts["description"] for record in store if record.dropped is None)
        statistics = repetitions(texts)
        target = store.folder / "statistics.json"
        atomic_write(target, json.dumps(statistics, indent=1))
        print(", ".join(f"{name} {value}" for name, value in statistics.items()), flush=True)


def instruction(kind: str, facts: dict[str, Any], verb: str) -> str:
    """Fill an instruction for one pair.

    Args:
        kind: key of :data:`PROMPTS`.
        facts: ``captions`` of both images and, if the instruction quotes it, ``difference``.
        verb: verb of the template.
    """
    first, second = (text.strip().rstrip(".") for text in facts["captions"])
    difference = str(facts.get("difference") or "").strip().rstrip(".")
    template = TEMPLATE.format(verb=verb)
    return PROMPTS[kind].format(first=first, second=second, difference=difference, template=template)


class ImageParagraphs(PipelineStage):
    """Describes each image of a pair separately, and writes the fact ``captions``, which the instructions quote.

    Args:
        captioner: captioner of single images; LLaVA in the paper.
        seed: as in `PipelineStage`.
    """

    reads = ("before", "after")

    def __init__(self, captioner: ImageCaptioner, seed: int = 0) -> None:
        super().__init__(seed)
        self.captioner = captioner

    def settings(self) -> dict[str, Any]:
        return {"captioner": self.captioner.settings()}

    def process(self, records: list[Record]) -> list[Record]:
        images = [record.image(side) for side in self.reads for record in records]
        texts = self.captioner.caption(images)
        if len(texts) != len(images):  # captions would be assigned to images of other pairs
            raise DataError(
                f"{type(self.captioner).__name__} returned {len(texts)} captions for {len(images)} images; expected "
                "one per image"
            )
        for index, record in enumerate(records):
            record.facts["captions"] = [" ".join(texts[index + side * len(records)].split()) for side in (0, 1)]
            if not all(record.facts["captions"]):
                record.drop("empty caption", "", "a text")
        return records


class EmbeddedDescriber(VisionLanguageModel):
    """Fills the template without a trained model, with the name of the object where the images differ most.

    If it cannot name an object in either image, its answer is not in the template.

    Args:
        library: folder of the cut-outs from which the images were composed; None for rendered objects.
    """

    def __init__(self, library: str | None = None) -> None:
        super().__init__()
        self.contours, self.captioner = DifferenceContours(), NearestPrototype(library)

    def unsupported_reason(self, facts: Mapping[str, Any]) -> str | None:
        return self.captioner.unsupported_reason(facts)

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        regions = self.contours.regions([pair[0] for pair in images], [pair[1] for pair in images])
        boxes = [
            (pair, pair_regions[0].box) for pair, pair_regions in zip(images, regions, strict=True) if pair_regions
        ]
        names = self.captioner.caption([crop(image, box) for pair, box in boxes for image in pair]) if boxes else []
        answers = []
        for pair_regions, prompt in zip(regions, prompts, strict=True):
            if not pair_regions:
                answers.append("The two images are the same.")
                continue
            pair = [names.pop(0), names.pop(0)]
            if all(name == self.captioner.background for name in pair):
                answers.append("I do not know what differs.")
                continue
            quoted = re.search(r"template: '(.*)'\.?$", prompt, re.DOTALL)
            template = quoted[1] if quoted else TEMPLATE.format(verb="shows")
            for name in pair:
                template = template.replace("[object description]", name, 1)
            answers.append(template)
        return answers
