"""Reworded captions: each states the facts that the parser reads, and no fact that the original caption lacks."""

from __future__ import annotations

import pytest
import torch

from benchmarks.studies.wordings import SENTENCES, VAGUE_SENTENCES, PeopleCaptions
from lightning_idc.data.synthetic.claims import Attributes, ParsedChange
from lightning_idc.data.synthetic.grammar import parse
from lightning_idc.data.synthetic.phrases import noun_phrase, sentences

THING = Attributes("small", "red", "metal", "cube")
ANCHOR = Attributes("large", "blue", "rubber", "sphere")
VALUES = {"color": "green", "texture": "rubber"}


def change(kind: str) -> ParsedChange:
    return ParsedChange(kind, THING, "left", ANCHOR, value=VALUES.get(kind))


@pytest.mark.parametrize("kind", SENTENCES)
def test_each_of_twenty_ways_to_say_a_change_is_parsed_as_that_change(kind: str) -> None:
    assert len(set(SENTENCES[kind])) == 20
    for way in SENTENCES[kind]:
        sentence = way.format(np=noun_phrase(change(kind)), value=VALUES.get(kind))
        assert parse(sentence) == change(kind), sentence


def test_vague_sentences_name_no_change() -> None:
    assert len(set(VAGUE_SENTENCES)) == 20
    assert {parse(sentence).kind for sentence in VAGUE_SENTENCES} == {None}


@pytest.mark.parametrize("kind", SENTENCES)
def test_captions_leave_details_out_and_add_none(kind: str) -> None:
    original = sentences(change(kind))
    people = PeopleCaptions(ratio=0.0)
    generator = torch.Generator().manual_seed(0)
    written = [parse(text) for _ in range(40) for text in people.captions(original, list, generator, kind)]
    assert {claim.kind for claim in written} == {kind} and {claim.value for claim in written} == {VALUES.get(kind)}
    things = {claim.thing for claim in written if claim.thing is not None}
    assert all(part in (None, whole) for thing in things for part, whole in zip(thing, THING, strict=True))
    assert {(thing.color, thing.shape) for thing in things} == {("red", "cube")}
    assert len(things) == 4 and {claim.relation for claim in written} == {None, "left"}


def test_a_pair_is_vague_in_all_captions_or_in_none() -> None:
    people = PeopleCaptions(ratio=0.5)
    original, generator = sentences(change("drop")), torch.Generator().manual_seed(0)
    shares = [
        sum(text in VAGUE_SENTENCES for text in texts) / len(texts)
        for texts in (people.captions(original, list, generator, "drop") for _ in range(200))
    ]
    assert set(shares) == {0.0, 1.0} and 0.4 < sum(shares) / len(shares) < 0.6
