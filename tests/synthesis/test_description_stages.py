"""Implicit-change descriptions: what the template lets through."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from lightning_idc.data.benchmarks.implicit_change import (
    VERBS,
    components,
    object_descriptions,
    repetitions,
    says_something,
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
from lightning_idc.synthesis.library import rendered_things
from lightning_idc.synthesis.pipeline import run
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.slots.base import ImageCaptioner, VisionLanguageModel
from lightning_idc.synthesis.slots.prototypes import NearestPrototype
from lightning_idc.synthesis.sources import Pairs, SamplePhotos
from lightning_idc.synthesis.stages import Sequential

HEAD = "The difference between the two images is that the first image"

pytest.importorskip("cv2")  # here, since importing it changes the environment


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_of_the_list_comes_apart_again(verb: str) -> None:
    answer = TEMPLATE.format(verb=verb).replace("[object description]", "a red car", 1)
    assert object_descriptions(answer.replace("[object description]", "an empty street")) == (
        "a red car",
        "an empty street",
    )
    assert object_descriptions(answer) is None, "a template that was not filled in"


def test_there_are_the_papers_verbs_without_its_empty_one() -> None:
    assert len(VERBS) == len(set(VERBS)) == 49


@pytest.mark.parametrize(
    ("answer", "parts"),
    [
        (
            f"{HEAD} shows a dog, a cat and a hat, while the second image depicts a dog.",
            ("a dog, a cat and a hat", "a dog"),
        ),
        (f'"{HEAD} shows a dog, while the second image shows a cat"', ("a dog", "a cat")),
        (f"{HEAD} shows\n a dog, while the second image\n shows a cat.", ("a dog", "a cat")),
        (f"Sure! {HEAD} shows a dog, while the second image shows a cat.", None),
        (f"{HEAD} resembles a dog, while the second image shows a cat.", None),
        ("The dog was replaced by a cat.", None),
        ("", None),
    ],
)
def test_answers_outside_of_the_template_are_refused(answer: str, parts: tuple[str, str] | None) -> None:
    assert object_descriptions(answer) == parts


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


@pytest.mark.parametrize("answer", GENERATIONS.values(), ids=GENERATIONS)
def test_the_generations_that_the_paper_prints_are_kept(answer: str) -> None:
    parts = object_descriptions(answer)
    assert parts is not None and all(map(says_something, parts))
    assert object_descriptions(answer.replace(", while", " while")) == parts, "a comma is not needed"
    spoken = components(answer)
    assert spoken is not None and [len(text) > 10 for text in spoken] == [True, True]


@pytest.mark.parametrize("empty", ["something does not", "is not", "It isn't.", "something was", "does"])
def test_negations_and_auxiliaries_alone_say_nothing(empty: str) -> None:
    assert not says_something(empty)
    assert says_something(f"{empty} red")


def test_the_three_instructions_quote_what_they_should() -> None:
    facts = {"captions": ["A dog runs. It is brown.", "A cat sits"], "difference": "the dog became a cat."}
    texts = {kind: instruction(kind, facts, "shows") for kind in INSTRUCTIONS}
    for text in texts.values():
        assert "First image could be described as: A dog runs. It is brown. Second image" in text
        assert text.endswith(f"template: '{TEMPLATE.format(verb='shows')}'.")
    assert "Here is the difference: the dog became a cat. Generate" in texts["spot_the_diff"]
    assert "Here is the prompt: the dog became a cat. First" in texts["instruct_pix2pix"]
    assert "became" not in texts["cc3m"]


@pytest.mark.slow
def test_pairs_of_a_data_set_bring_the_difference_that_two_instructions_quote(tmp_path: Path) -> None:
    data = SyntheticPairs(train_pairs=3, val_pairs=1, test_pairs=1, render_size=32, cache_dir=tmp_path, progress=False)
    store = run(
        Sequential([ImageParagraphs(Fixed()), Descriptions(Answers(), "spot_the_diff")]), Pairs(data), tmp_path / "a"
    )
    assert store.counts() == (1, {"says nothing": 1, "not in the template": 1})
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


def test_repetitions_count_as_in_table_14() -> None:
    # the row of Spot-the-Diff: 7,004 in total, 6,439 unique, 565 repetitions, 8.06 % (565 / 7,004 = 8.067)
    texts = [f"t{i}" for i in range(6439)] + ["t0"] * 565
    found = repetitions(texts)
    assert found == {"total": 7004, "unique": 6439, "repetition": 565, "repetition_ratio": 0.0807}
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


def test_refused_answers_are_counted_with_their_reason(tmp_path: Path) -> None:
    store = run(Descriptions(Answers()), Captioned(), tmp_path / "a")
    assert store.counts() == (1, {"says nothing": 1, "not in the template": 1, "no captions": 1})
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


def test_the_embedded_describer_does_not_make_up_what_it_cannot_name() -> None:
    torch.manual_seed(0)
    before = torch.full((3, 96, 96), 90, dtype=torch.uint8)
    changed = before.clone()
    changed[:, 30:60, 20:70] = torch.randint(0, 256, (3, 30, 50), dtype=torch.uint8)
    prompt = TEMPLATE.format(verb="shows")
    describer = EmbeddedDescriber()
    describer.captioner.load()
    answers = describer.answer([(before, before), (before, changed)], [prompt, prompt])
    assert answers == ["The two images are the same.", "I do not know what differs."]
    assert [object_descriptions(answer) for answer in answers] == [None, None]


def test_things_are_named_in_loose_boxes_and_parts_of_them_are_not() -> None:
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
