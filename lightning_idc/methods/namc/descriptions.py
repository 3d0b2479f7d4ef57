"""Implicit-change descriptions (NAMC, Appendix D.2): what either image shows, in a template that comes apart again."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from torch import Tensor

from lightning_idc.core.types import PairError
from lightning_idc.synthesis.records import Record, record_seed
from lightning_idc.synthesis.slots.base import ImageCaptioner, VisionLanguageModel, crop
from lightning_idc.synthesis.slots.contours import DifferenceContours
from lightning_idc.synthesis.slots.prototypes import NearestPrototype
from lightning_idc.synthesis.stages import PipelineStage
from lightning_idc.synthesis.store import RecordStore

VERBS = (
    "is", "describes", "depicts", "illustrates", "displays", "demonstrates", "introduces", "has", "positions", "starts",
    "places", "discusses", "promotes", "takes", "converts", "adopts", "presents", "reveals", "incorporates", "aims",
    "refers", "offers", "focuses", "suggests", "attributes", "specifies", "captures", "symbolizes", "advertises",
    "conveys", "features", "appears", "consists", "remains", "shows", "lists", "explains", "shifts", "indicates",
    "provides", "contains", "exhibits", "labels", "sets", "looks", "states", "showcases", "creates", "centers",
)  # fmt: skip
"""The 49 verbs of Appendix D.2; an empty one that is printed between the fourth and the fifth is left out."""
TEMPLATE = (
    "The difference between the two images is that the first image {verb} [object description], "
    "while the second image {verb} [object description]."
)
_CAPTIONS = "First image could be described as: {first}. Second image could be described as: {second}. "
_STRICTLY = "Generate the description strictly according to the template: '{template}'."
_GIVEN = "Given the first and the second images, describe the difference between the two images. "
INSTRUCTIONS = {
    "spot_the_diff": _GIVEN + _CAPTIONS + "Here is the difference: {difference}. " + _STRICTLY,
    "instruct_pix2pix": (
        "Given the first image and a prompt, the second image is generated based on them. Describe the difference "
        "between the two images. Here is the prompt: {difference}. " + _CAPTIONS + _STRICTLY
    ),
    "cc3m": _GIVEN + _CAPTIONS + _STRICTLY,
}
"""Appendix D.2, by the data that a pair comes from."""
_ANY_VERB = "|".join(VERBS)
_FORM = re.compile(
    rf"the difference between the two images is that the first image (?:{_ANY_VERB})\s+(?P<first>.+?),\s*"
    rf"while the second image (?:{_ANY_VERB})\s+(?P<second>.+?)\s*\.?",
    re.IGNORECASE | re.DOTALL,
)
_EMPTY_WORDS = {
    "something", "anything", "it", "this", "that", "one", "the", "a", "an", "image",
    "do", "does", "did", "is", "are", "was", "were", "be", "been", "has", "have", "had", "can", "could", "will",
    "would", "may", "might", "must",
    "nothing", "not", "no", "n't", "never", "doesn't", "isn't", "wasn't", "aren't", "weren't", "don't", "didn't",
    "hasn't", "haven't",
}  # fmt: skip
"""Placeholders, auxiliaries and negations."""


class Descriptions(PipelineStage):
    """Lets a vision-language model describe each pair in the template, and takes the answer apart.

    Reads ``before`` and ``after``, the fact ``captions`` (one paragraph for each image) and, except for CC3M,
    ``difference``; writes ``description``, ``descriptions`` (of either image), ``verb`` and ``origin``. Answers outside
    of the template, and those that say nothing, are dropped with the answer as the reason's value.

    Args:
        model: the paper's is Qwen2-VL-7B-Instruct.
        kind: which of the three instructions.
        seed: of the drawn verbs.
    """

    reads = ("before", "after")

    def __init__(
        self,
        model: VisionLanguageModel | None = None,
        kind: Literal["spot_the_diff", "instruct_pix2pix", "cc3m"] = "cc3m",
        seed: int = 0,
    ) -> None:
        super().__init__(seed)
        if kind not in INSTRUCTIONS:
            raise PairError(f"kind is {kind!r}; expected one of {', '.join(INSTRUCTIONS)}")
        self.model, self.kind = model or EmbeddedDescriber(), kind

    def settings(self) -> dict[str, Any]:
        return {"model": self.model.settings(), "instruction": INSTRUCTIONS[self.kind]}

    def process(self, records: list[Record]) -> list[Record]:
        for record in records:
            self.refuse(record, self.model)
        live = [record for record in records if record.dropped is None and self._has_facts(record)]
        verbs = [VERBS[int(record_seed(self.seed, record.id).integers(len(VERBS)))] for record in live]
        prompts = [instruction(self.kind, record.facts, verb) for record, verb in zip(live, verbs, strict=True)]
        images = [list(record.pair()) for record in live]
        answers = self.model.answer(images, prompts) if live else []
        for record, verb, answer in zip(live, verbs, answers, strict=True):
            record.facts["description"], record.facts["verb"] = " ".join(answer.split()), verb
            record.facts["origin"] = self.kind
            parts = take_apart(answer)
            if parts is None:
                record.drop("not in the template", record.facts["description"], "the template of Appendix D.2")
            elif not all(says_something(part) for part in parts):
                record.drop("says nothing", record.facts["description"], "more than negations and auxiliaries")
            else:
                record.facts["descriptions"] = list(parts)
        return records

    def _has_facts(self, record: Record) -> bool:
        if len(record.facts.get("captions") or []) != 2:
            record.drop("no captions", None, "one of each image")
        elif self.kind != "cc3m" and not record.facts.get("difference"):
            record.drop("no difference", None, "a summary of the change, or the editing prompt")
        return record.dropped is None

    def finish(self, store: RecordStore) -> None:
        texts = (record.facts["description"] for record in store if record.dropped is None)
        statistics = repetitions(texts)
        target = store.folder / "statistics.json"
        target.write_text(json.dumps(statistics, indent=1), encoding="utf-8")
        print(", ".join(f"{name} {value}" for name, value in statistics.items()), flush=True)


def instruction(kind: str, facts: dict[str, Any], verb: str) -> str:
    """The prompt for one pair.

    Args:
        kind: of `INSTRUCTIONS`.
        facts: ``captions`` of both images and, where the instruction has it, ``difference``.
        verb: for the template.
    """
    first, second = (text.strip().rstrip(".") for text in facts["captions"])
    difference = str(facts.get("difference") or "").strip().rstrip(".")
    template = TEMPLATE.format(verb=verb)
    return INSTRUCTIONS[kind].format(first=first, second=second, difference=difference, template=template)


def take_apart(answer: str) -> tuple[str, str] | None:
    """The two object descriptions of an answer; None where it is not in the template.

    Args:
        answer: of a model; quotes around it are allowed, anything else is not.
    """
    match = _FORM.fullmatch(" ".join(answer.split()).strip("'\" "))
    if match is None or "[" in match.group():
        return None  # a template that was not filled in
    return match["first"].strip(), match["second"].strip()


def says_something(description: str) -> bool:
    """Whether any word is more than a negation, an auxiliary or a placeholder."""
    return any(word not in _EMPTY_WORDS for word in re.findall(r"[a-z0-9']+", description.lower()))


def repetitions(texts: Iterable[str]) -> dict[str, float | int]:
    """Table 14: how many descriptions there are, how many different ones, and the share of repetitions."""
    counts = Counter(texts)
    total, unique = counts.total(), len(counts)
    return {
        "total": total,
        "unique": unique,
        "repetition": total - unique,
        "repetition_ratio": round((total - unique) / total, 4) if total else 0.0,
    }


class ImageParagraphs(PipelineStage):
    """Describes each image of a pair on its own; writes the fact ``captions``, which the instructions quote.

    Args:
        captioner: the paper takes LLaVA's detailed paragraphs.
        seed: see `PipelineStage`.
    """

    reads = ("before", "after")

    def __init__(self, captioner: ImageCaptioner, seed: int = 0) -> None:
        super().__init__(seed)
        self.captioner = captioner

    def settings(self) -> dict[str, Any]:
        return {"captioner": self.captioner.settings()}

    def process(self, records: list[Record]) -> list[Record]:
        texts = self.captioner.caption([record.image(side) for side in self.reads for record in records])
        for number, record in enumerate(records):
            record.facts["captions"] = [" ".join(texts[number + side * len(records)].split()) for side in (0, 1)]
            if not all(record.facts["captions"]):
                record.drop("empty caption", "", "some words")
        return records


class EmbeddedDescriber(VisionLanguageModel):
    """Fills the template without weights: names what stands in the region where the two images differ most.

    It says that it does not know, outside of the template, where it can name nothing in either image.

    Args:
        library: folder of cut-outs that the pictures were made with; None for rendered things.
    """

    def __init__(self, library: str | None = None) -> None:
        super().__init__()
        self.contours, self.captioner = DifferenceContours(), NearestPrototype(library)

    def refusal(self, facts: Mapping[str, Any]) -> str | None:
        return self.captioner.refusal(facts)

    def answer(self, images: Sequence[Sequence[Tensor]], prompts: Sequence[str]) -> list[str]:
        regions = self.contours.regions([pair[0] for pair in images], [pair[1] for pair in images])
        places = [(pair, found[0].box) for pair, found in zip(images, regions, strict=True) if found]
        names = self.captioner.caption([crop(image, box) for pair, box in places for image in pair]) if places else []
        answers = []
        for found, prompt in zip(regions, prompts, strict=True):
            if not found:
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
