"""Implicit-change descriptions: which answers the template accepts."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch

from lightning_idc.data.benchmarks.implicit_change import (
    VERBS,
    Rejection,
    component_spans,
    components,
    names_object,
    object_descriptions,
    repetitions,
)
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.methods.img_diff.edits import PasteEdits
from lightning_idc.methods.namc.descriptions import (
    INSTRUCTIONS,
    TEMPLATE,
    Descriptions,
    EmbeddedDescriber,
    ImageParagraphs,
    instruction,
)
from lightning_idc.nn.vocabulary import BERT_SPECIALS, BertVocabulary, ClipVocabulary
from lightning_idc.synthesis.library import rendered_things
from lightning_idc.synthesis.models.base import ImageCaptioner, VisionLanguageModel
from lightning_idc.synthesis.models.prototypes import NearestPrototype
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.sources import Pairs, SamplePhotos
from lightning_idc.synthesis.stages import Sequential
from lightning_idc.utils.answers import CutOff
from lightning_idc.utils.errors import DataError

HEAD = "The difference between the two images is that the first image"

pytest.importorskip("cv2")  # here, since importing it changes the environment


def reason(answer: str, cut_off: bool = False) -> str:
    """Return why an answer is rejected."""
    result = object_descriptions(answer, cut_off)
    assert isinstance(result, Rejection), result
    return result.reason


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_can_be_parsed(verb: str) -> None:
    answer = TEMPLATE.format(verb=verb).replace("[object description]", "a red car", 1)
    assert object_descriptions(answer.replace("[object description]", "an empty street")) == (
        "a red car",
        "an empty street",
    )
    assert reason(answer) == "not in the template", "it was not filled in"


def test_verbs_equal_the_paper() -> None:
    assert len(VERBS) == len(set(VERBS)) == 49


SAID = f"{HEAD} shows a dog, while the second image shows a cat"


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (
            f"{HEAD} shows a dog, a cat and a hat, while the second image depicts a dog.",
            ("a dog, a cat and a hat", "a dog"),
        ),
        (f'"{SAID}."', ("a dog", "a cat")),
        (f"\u201c{SAID}.\u201d", ("a dog", "a cat")),
        (f"{HEAD} shows\n a dog, while the second image\n shows a cat.", ("a dog", "a cat")),
        (
            f"{HEAD} shows No. 5, a 3.5 m boat, while the second image shows St. Mary, approx. 2 m tall, in the U.S.A.",
            ("No. 5, a 3.5 m boat", "St. Mary, approx. 2 m tall, in the U.S.A"),
        ),
        (
            f'{HEAD} shows a sign "Stop. Look.", while the second image shows a sign that says "Go."',
            ('a sign "Stop. Look."', 'a sign that says "Go."'),
        ),
    ],
)
def test_sentence_in_the_template_is_accepted(answer: str, parts: tuple[str, str]) -> None:
    assert object_descriptions(answer) == parts


NOT_IN_IT, CUT, MORE = "not in the template", "truncated", "text after the sentence"


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (f"Sure! {SAID}.", NOT_IN_IT),
        (f"{HEAD} resembles a dog, while the second image shows a cat.", NOT_IN_IT),
        (f"{HEAD} shows a dog. It is brown, while the second image shows a cat.", NOT_IN_IT),
        (f"{HEAD} is a close-up-while the second image is a cat.", NOT_IN_IT),
        ("The first image shows a dog, while the second image shows a cat.", NOT_IN_IT),
        ("The dog was replaced by a cat.", NOT_IN_IT),
        ("", NOT_IN_IT),
        (f"{SAID} standing on the edge of a", CUT),
        (SAID, CUT),
        (f'"{SAID}"', CUT),
        (f"{SAID}...", CUT),
        (f"{SAID} by St. Mary, No. 5, of 3.5 m", CUT),
        (f"{SAID}. The dog is brown and the cat is not visible. Overall, both are similar", MORE),
        (f"{SAID}. Note: I could not verify this", MORE),
        (f"{SAID}.\n\nNote: I could not verify this.", MORE),
        (f"{SAID}\n\nNote: I could not verify this.", MORE),
        (f'"{SAID}." Note: I could not verify this.', MORE),
        (f"{SAID}. the dog is brown.", MORE),
    ],
)
def test_invalid_answers_are_rejected(answer: str, why: str) -> None:
    assert reason(answer) == why


def test_rejection_quotes_text_after_the_sentence() -> None:
    result = object_descriptions(f"{SAID}.\n\nNote: I could not\nverify this.")
    assert isinstance(result, Rejection) and result.excerpt == "Note: I could not verify this."


def test_answer_at_the_token_limit_is_truncated() -> None:
    answer = f"{SAID} of Main St."
    assert object_descriptions(answer) == ("a dog", "a cat of Main St") and reason(answer, cut_off=True) == CUT


GENERATIONS = {
    "Figure 7(a)": "The difference between two images is that the first image shows a bee on a wooden surface, while "
    "the second image shows a bee against a plain white background.",
    "Figure 7(b)": "The difference between two images is that the first image features a golfer holding a golf club in "
    "a position that suggests he is in the middle of a swing, while the second image shows a golfer holding a golf "
    "club with the head of the club positioned just behind the ball, indicating the moment of impact or just before "
    "it.",
    "Figure 8": "The difference between two images is that the first image shows a person jumping, with each frame "
    "capturing the person in mid-air, while the second image depicts a bald eagle standing on the edge of a body of "
    "water, looking downwards.",
    "Figure 10": "The difference between two images is that the first image shows a typewriter with the word "
    '"HUNGER" typed on the paper, while the second image shows a typewriter with the keys visible and no text on the '
    "paper.",
}


def pieces(text: str) -> list[str]:
    """Return the word pieces that BERT's vocabulary could have for a text, as whole words."""
    return [*BERT_SPECIALS, *sorted(set(re.findall(r"\w+|[^\w\s]", text.lower())))]


@pytest.mark.parametrize("answer", GENERATIONS.values(), ids=GENERATIONS)
def test_generations_of_the_paper_are_accepted(answer: str) -> None:
    parts = object_descriptions(answer)
    assert not isinstance(parts, Rejection) and all(map(names_object, parts))
    assert object_descriptions(answer.replace(", while", " while")) == parts, "a comma is not needed"
    spoken = components(answer)
    assert spoken is not None and [len(text) > 10 for text in spoken] == [True, True]
    for vocabulary in (ClipVocabulary(), BertVocabulary(pieces(answer))):
        grouped = [word for word, _ in vocabulary.grouped(vocabulary.encode(answer)[1:-1])]
        spans = component_spans(grouped)
        assert spans is not None
        same = ["".join(grouped[span.start : span.stop]) for span in spans]
        assert [text.replace(" ", "") for text in spoken] == [text.removesuffix(",") for text in same]


@pytest.mark.parametrize("empty", ["something does not", "is not", "It isn't.", "something was", "does"])
def test_negations_and_auxiliaries_name_no_object(empty: str) -> None:
    assert not names_object(empty)
    assert names_object(f"{empty} red")


def test_instructions_quote_their_inputs() -> None:
    facts = {"captions": ["A dog runs. It is brown.", "A cat sits"], "difference": "the dog became a cat."}
    texts = {kind: instruction(kind, facts, "shows") for kind in INSTRUCTIONS}
    for text in texts.values():
        assert "First image could be described as: A dog runs. It is brown. Second image" in text
        assert text.endswith(f"template: '{TEMPLATE.format(verb='shows')}'.")
    assert "Here is the difference: the dog became a cat. Generate" in texts["spot_the_diff"]
    assert "Here is the prompt: the dog became a cat. First" in texts["instruct_pix2pix"]
    assert "became" not in texts["cc3m"]


@pytest.mark.slow
def test_instructions_quote_the_difference_of_data_set_pairs(tmp_path: Path) -> None:
    data = SyntheticPairs(train_pairs=3, val_pairs=1, test_pairs=1, render_size=32, cache_dir=tmp_path, progress=False)
    store = run(
        Sequential([ImageParagraphs(Fixed()), Descriptions(Answers(), "spot_the_diff")]), Pairs(data), tmp_path / "a"
    )
    assert store.counts() == (1, {"no object in the first image": 1, "not in the template": 1})
    truths = data.pairs_of("train")
    assert [record.facts["difference"] for record in store] == [truths.captions(i)[0] for i in range(3)]


def test_the_conventional_prompt_of_table_11_has_no_template(tmp_path: Path) -> None:
    store = run(Descriptions(Answers(), "conventional"), Captioned(), tmp_path / "a")
    assert store.counts() == (3, {"no captions": 1})
    assert instruction("conventional", {"captions": ["a", "b"]}, "shows").endswith(
        "from the first image to the second?"
    )


class Fixed(ImageCaptioner):
    def caption(self, images: list[torch.Tensor]) -> list[str]:  # type: ignore[override]
        return ["a table"] * len(images)


@pytest.mark.parametrize("texts", [1, 4])
def test_captioner_must_answer_once_per_image(tmp_path: Path, texts: int) -> None:
    class Other(ImageCaptioner):
        def caption(self, images: list[torch.Tensor]) -> list[str]:  # type: ignore[override]
            return [f"text {number}" for number in range(len(images) * texts // 2)]

    with pytest.raises(DataError, match=rf"Other returned {texts} captions for 2 images; expected one per image"):
        run(ImageParagraphs(Other()), Captioned(), tmp_path / "a")


def test_repetitions_count_as_in_table_14() -> None:
    # the row of Spot-the-Diff: 7,004 in total, 6,439 unique, 565 repetitions, 8.06 % (565 / 7,004 = 8.067)
    texts = [f"t{i}" for i in range(6439)] + ["t0"] * 565
    result = repetitions(texts)
    assert result == {"total": 7004, "unique": 6439, "repetition": 565, "repetition_ratio": 0.0807}
    assert repetitions([])["repetition_ratio"] == 0.0


class Answers(VisionLanguageModel):
    def answer(self, images: list[list[torch.Tensor]], prompts: list[str]) -> list[str]:  # type: ignore[override]
        return [
            f"{HEAD} shows a dog, while the second image shows a cat.",
            f"{HEAD} is something, while the second image is not.",
            "They look the same.",
        ][: len(prompts)]


class Captioned:
    fingerprint = "captioned"

    def __len__(self) -> int:
        return 4

    def record(self, index: int) -> Record:
        record = Record(str(index), {"captions": ["a", "b"]} if index < 3 else {})
        for side in ("before", "after"):
            record.put(side, torch.zeros(3, 8, 8, dtype=torch.uint8))
        return record


class Stopped(VisionLanguageModel):
    def answer(self, images: list[list[torch.Tensor]], prompts: list[str]) -> list[str]:  # type: ignore[override]
        return [CutOff(f"{SAID}."), f'"{SAID}."', f"{SAID}. Both are animals."][: len(prompts)]


def test_truncated_answers_are_dropped_and_quotes_removed(
    tmp_path: Path,
) -> None:
    store = run(Descriptions(Stopped()), Captioned(), tmp_path / "a")
    assert store.counts() == (1, {"truncated": 1, "text after the sentence": 1, "no captions": 1})
    assert store.record(1).facts["description"] == f"{SAID}."
    dropped = store.record(2).dropped
    assert dropped is not None and dropped["value"] == "Both are animals."
    free = run(Descriptions(Stopped(), "conventional"), Captioned(), tmp_path / "b")
    assert free.counts() == (2, {"truncated": 1, "no captions": 1})


def test_rejected_answers_are_counted_by_reason(tmp_path: Path) -> None:
    store = run(Descriptions(Answers()), Captioned(), tmp_path / "a")
    assert store.counts() == (1, {"no object in the first image": 1, "not in the template": 1, "no captions": 1})
    assert store.record(0).facts["descriptions"] == ["a dog", "a cat"]
    assert json.loads((tmp_path / "a" / "statistics.json").read_text())["total"] == 1
    missing = run(Descriptions(Answers(), "spot_the_diff"), Captioned(), tmp_path / "b")
    assert missing.counts()[1] == {"no difference": 3, "no captions": 1}


@pytest.mark.slow
def test_the_embedded_describer_fills_the_template_on_photographs(tmp_path: Path) -> None:
    pytest.importorskip("skimage")
    chain = Sequential([PasteEdits(size=128, kinds=["replace"]), Descriptions()])
    store = run(chain, SamplePhotos(copies=3), tmp_path / "a")
    described = [r for r in store if r.dropped is None]
    assert len(described) > 0.8 * len(store)
    right = sum(f"a {r.facts['nouns'][side]}" == r.facts["descriptions"][side] for r in described for side in (0, 1))
    assert right > 0.85 * 2 * len(described)


def test_embedded_describer_names_only_known_objects() -> None:
    torch.manual_seed(0)
    before = torch.full((3, 96, 96), 90, dtype=torch.uint8)
    changed = before.clone()
    changed[:, 30:60, 20:70] = torch.randint(0, 256, (3, 30, 50), dtype=torch.uint8)
    prompt = TEMPLATE.format(verb="shows")
    describer = EmbeddedDescriber()
    describer.captioner.load()
    answers = describer.answer([(before, before), (before, changed)], [prompt, prompt])
    assert answers == ["The two images are the same.", "I do not know what differs."]
    assert [reason(answer) for answer in answers] == ["not in the template"] * 2


@pytest.mark.slow
def test_objects_are_recognised_in_loose_boxes_but_parts_are_not() -> None:
    captioner = NearestPrototype()
    captioner.load()
    things = rendered_things()[::5]
    for ground in (40, 200):
        loose, halves = [], []
        for thing in things:
            height, width = thing.image.shape[1:]
            picture = torch.full((3, height + 6, width + 10), ground, dtype=torch.uint8)
            part = picture[:, 4 : 4 + height, 8 : 8 + width]
            part.copy_((thing.alpha * thing.image + (1 - thing.alpha) * part).round().to(torch.uint8))
            loose.append(picture)
            halves.append(part[:, height // 4 : -height // 4, width // 4 : -width // 4])
        assert captioner.caption(loose) == [f"a {thing.name}" for thing in things]
        assert captioner.caption(halves) == ["plain background"] * len(things)
