"""Captions of rendered pairs as several people would write them: in other words, with fewer details, and often vague.

1. Of some changed pairs, every caption is one of 20 sentences that are true of every changed pair;
2. every other caption is rewritten in one of 20 ways to say its kind of change, and leaves out some attributes.

``grammar.parse`` reads the type, the object and the new value from each sentence.

    python -m benchmarks.studies.wordings  # how many of these captions ``too_similar`` takes for paraphrases
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations

import torch

from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.data.synthetic.claims import ParsedChange
from lightning_idc.data.synthetic.grammar import parse
from lightning_idc.data.synthetic.phrases import noun_phrase
from lightning_idc.data.transforms.robustness import VAGUE, VagueCaptions
from lightning_idc.methods.adpo.pool import SIMILARITY_THRESHOLD
from lightning_idc.synthesis import SentenceEncoder

VAGUE_SENTENCES = (
    *VAGUE,
    "something is different",
    "the second picture is a bit different",
    "it looks different now",
    "they are not quite alike",
    "i see a change",
    "a change was made",
    "someone changed something",
    "something happened in the scene",
    "the two pictures differ",
    "the pictures are not equal",
    "one detail changed",
    "not everything is as before",
    "something about the scene is different",
    "the scene is not as it was",
    "a detail is different now",
)
"""Sentences that are true of every changed pair."""

SENTENCES = {
    "color": (
        "{np} changed to {value}",
        "{np} became {value}",
        "{np} has become {value}",
        "{np} turned {value}",
        "{np} has turned {value}",
        "{np} is now {value}",
        "now {np} is {value}",
        "{np} is {value} now",
        "{np} looks {value} now",
        "{np} went {value}",
        "{np} got {value}",
        "{np} was painted {value}",
        "{np} has been painted {value}",
        "someone painted {np} {value}",
        "they made {np} {value}",
        "{np} was recolored to {value}",
        "the color of {np} changed to {value}",
        "the color of {np} is {value} now",
        "{np} is {value} in the second picture",
        "in the second picture {np} is {value}",
    ),
    "texture": (
        "{np} changed to {value}",
        "{np} became {value}",
        "{np} has become {value}",
        "{np} turned to {value}",
        "{np} has turned to {value}",
        "{np} is now {value}",
        "now {np} is {value}",
        "{np} is {value} now",
        "{np} looks like {value} now",
        "{np} is made of {value} now",
        "now {np} is made of {value}",
        "{np} was changed to {value}",
        "{np} has been changed to {value}",
        "someone changed {np} to {value}",
        "they made {np} {value}",
        "{np} was turned into {value}",
        "the material of {np} changed to {value}",
        "the material of {np} is {value} now",
        "{np} is {value} in the second picture",
        "in the second picture {np} is {value}",
    ),
    "add": (
        "{np} appeared",
        "{np} has appeared",
        "{np} was added",
        "{np} has been added",
        "{np} is new",
        "{np} is new in the scene",
        "{np} is a new one",
        "someone added {np}",
        "someone has added {np}",
        "they added {np}",
        "now {np} has appeared",
        "suddenly {np} appeared",
        "{np} appeared in the scene",
        "{np} was added to the scene",
        "{np} was newly added",
        "{np} appeared in the second picture",
        "in the second picture {np} was added",
        "in the second picture {np} is new",
        "the second picture has {np} added",
        "what is new is {np}",
    ),
    "drop": (
        "{np} disappeared",
        "{np} has disappeared",
        "{np} was removed",
        "{np} has been removed",
        "{np} is gone",
        "now {np} is gone",
        "{np} is missing",
        "{np} went missing",
        "{np} is missing now",
        "someone removed {np}",
        "someone took {np} away",
        "they took away {np}",
        "{np} was taken away",
        "{np} is no longer there",
        "we no longer see {np}",
        "{np} disappeared from the scene",
        "{np} was removed from the scene",
        "{np} is missing from the second picture",
        "in the second picture {np} is gone",
        "the second picture is missing {np}",
    ),
    "move": (
        "{np} moved",
        "{np} has moved",
        "{np} was moved",
        "{np} has been moved",
        "now {np} has moved",
        "{np} is in another place",
        "{np} is in a different place",
        "{np} is at another location",
        "{np} is in another position",
        "someone moved {np}",
        "someone has moved {np}",
        "they moved {np}",
        "{np} changed its place",
        "{np} has changed its position",
        "{np} moved to another spot",
        "{np} was moved somewhere else",
        "{np} is no longer in its old place",
        "{np} moved in the second picture",
        "in the second picture {np} has moved",
        "the position of {np} is not the old one",
    ),
}
"""Ways to say a change, by its kind."""


class PeopleCaptions(VagueCaptions):
    """Captions of changed pairs as several people would write them.

    Args:
        ratio: share of the pairs that have vague captions only.
        detail: probability that a caption names the size, the material, or the relation to another object; each is
            drawn by itself.
        splits: splits with such captions.
        seed: random seed.
    """

    def __init__(
        self, ratio: float = 0.6, detail: float = 0.5, splits: Sequence[str] = ("train",), seed: int = 0
    ) -> None:
        super().__init__(ratio, VAGUE_SENTENCES, splits, seed)
        self.detail = detail

    def captions(
        self,
        captions: list[str],
        vocabulary: Callable[[], Sequence[str]],
        generator: torch.Generator,
        change_type: str | None = None,
    ) -> list[str]:
        written = super().captions(captions, vocabulary, generator, change_type)
        if not set(written).isdisjoint(self.sentences):
            return written
        return list(dict.fromkeys(self.rephrased(parse(caption), generator) for caption in captions))

    def rephrased(self, claim: ParsedChange, generator: torch.Generator) -> str:
        """One sentence for a change.

        Args:
            claim: the change, of a kind of :data:`SENTENCES`.
            generator: source of all randomness.
        """
        assert claim.kind is not None and claim.thing is not None
        size, material, relation = (torch.rand(3, generator=generator) < self.detail).tolist()
        thing = claim.thing._replace(
            size=claim.thing.size if size else None, material=claim.thing.material if material else None
        )
        shortened = replace(claim, thing=thing, relation=claim.relation if relation else None)
        ways = SENTENCES[claim.kind]
        way = ways[int(torch.randint(len(ways), (), generator=generator))]
        return way.format(np=noun_phrase(shortened), value=claim.value)


def relation_of(first: ParsedChange, second: ParsedChange) -> str | None:
    """What two changes share; None if they share nothing, or differ in how much they say of one object."""
    same_change = (first.kind, first.value) == (second.kind, second.value)
    same_object = (first.thing, first.relation) == (second.thing, second.relation)
    if same_object and (first.relation is None or first.anchor == second.anchor):
        return "the same facts" if same_change else "the same object, another change"
    attributes = zip(first.thing or (), second.thing or (), strict=True)
    differs = any(None not in pair and pair[0] != pair[1] for pair in attributes)
    return "the same change, another object" if same_change and differs else None


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    data = SyntheticPairs(train_pairs=400, things=(2, 3), no_change=0.0, corruption=PeopleCaptions(), progress=False)
    source = data.pairs_of("train")
    texts = sorted({text for index in range(len(source)) for text in source.captions(index)} - {*VAGUE_SENTENCES})
    encoder = SentenceEncoder()
    encoder.load()
    embeddings = encoder.encode(texts)
    above = (embeddings @ embeddings.T >= SIMILARITY_THRESHOLD).tolist()
    claims = [parse(text) for text in texts]
    counts: dict[str, list[bool]] = {}
    for i, j in combinations(range(len(texts)), 2):
        if (name := relation_of(claims[i], claims[j])) is not None:
            counts.setdefault(name, []).append(above[i][j])
    for name, reached in counts.items():
        share = 100 * sum(reached) / len(reached)
        print(f"{name}: {len(reached)} pairs of captions, {share:.1f} % at {SIMILARITY_THRESHOLD:g} or above")


if __name__ == "__main__":
    main()
