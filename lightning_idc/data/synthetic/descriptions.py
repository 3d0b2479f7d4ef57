"""Implicit-change descriptions of rendered pairs with a known fraction of wrong words and wrong descriptions.

They replace the descriptions of a large model: because their noise is labelled, its detection can be measured. The
noise contradicts the image but stays in the domain, as unrelated words would be too easy to detect.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lightning_idc.data.benchmarks.implicit_change import component_spans, components, compose
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import Split
from lightning_idc.data.synthetic.claims import Attributes, claim_of
from lightning_idc.data.synthetic.datamodule import SyntheticPairs
from lightning_idc.data.synthetic.phrases import RELATION_PHRASES
from lightning_idc.data.synthetic.sampling import Relations, Rng
from lightning_idc.data.synthetic.source import SyntheticSource
from lightning_idc.data.synthetic.truth import ATTRIBUTE_WORDS
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.nn.vocabulary import words_of
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import ConfigError

_VERBS = ("shows", "depicts", "displays", "presents", "contains", "features")
_KINDS = tuple(ATTRIBUTE_WORDS)
_STREAM = 0x1DC
"""Seed component that makes the random numbers of descriptions independent of those of the scenes."""

Part = str | Attributes
"""Part of an object description: plain words, or the attributes of one object."""


@dataclass(frozen=True, slots=True)
class Description:
    """An implicit-change description with labels of its planted noise.

    Args:
        text: text of the description.
        wrong: for each word of ``words_of(text)``, whether it is planted noise.
        attribute: for each word, whether it is an attribute within an object description.
    """

    text: str
    wrong: tuple[bool, ...]
    attribute: tuple[bool, ...]


def object_descriptions(ground_truth: Mapping[str, Any]) -> tuple[list[Part], list[Part]]:
    """Parts of the descriptions of the before and the after image: the changed object and its anchor.

    Args:
        ground_truth: ground truth of a pair of a mode with a single change.
    """
    if not ground_truth["changes"]:
        things = [_attributes(plain) for plain in ground_truth["before"]["things"][:2]]
        both: list[Part] = ["a", things[0], "and a", things[1]]
        return both, list(both)
    claim = claim_of(ground_truth["changes"][0])
    assert claim.thing is not None and claim.anchor is not None and claim.relation is not None
    where = RELATION_PHRASES[claim.relation]
    with_target: list[Part] = ["a", claim.thing, f"{where} a", claim.anchor]
    without_target: list[Part] = ["a", claim.anchor, f"with nothing {where} it"]
    if claim.kind == "add":
        return without_target, with_target
    if claim.kind == "drop":
        return with_target, without_target
    if claim.kind == "move":
        return with_target, ["a", claim.thing, "away from a", claim.anchor]
    changed = _attributes(ground_truth["after"]["things"][ground_truth["changes"][0]["after"][0]])
    return with_target, ["a", changed, f"{where} a", claim.anchor]


def describe(
    ground_truth: Mapping[str, Any],
    rng: Rng,
    words: float = 0.0,
    descriptions: float = 0.0,
    other: Mapping[str, Any] | None = None,
    hallucinations: float = 0.0,
) -> Description:
    """Describe a pair with planted noise.

    Args:
        ground_truth: ground truth of the pair.
        rng: source of all randomness.
        words: fraction of attribute words that are replaced by another word of the same attribute, such that the phrase
            matches no object in the image; a word that is true of no object in the image is preferred.
        descriptions: fraction of object descriptions that are replaced by those of ``other``.
        other: ground truth of another pair.
        hallucinations: fraction of object descriptions that also mention an absent object. This object is a function of
            the first one, like the co-occurrence bias of a trained model.
    """
    sides = object_descriptions(ground_truth)
    other_sides = None if other is None else object_descriptions(other)
    verbs = (rng.pick(_VERBS), rng.pick(_VERBS))
    texts: list[str] = []
    labels: list[list[tuple[bool, bool]]] = []
    for side, (name, parts) in enumerate(zip(("before", "after"), sides, strict=True)):
        is_replaced = other_sides is not None and rng.chance(descriptions)
        things = [_attributes(plain) for plain in ground_truth[name]["things"]]
        if other_sides is not None and is_replaced:
            text, word_labels = _verbalize(other_sides[side], things, rng, 0.0)
        else:
            text, word_labels = _verbalize(parts, things, rng, words)
        if hallucinations and not is_replaced and rng.chance(hallucinations):
            extra_text, extra_labels = _hallucinated(parts, things)
            text, word_labels = text + extra_text, word_labels + extra_labels
        texts.append(text)
        labels.append([(is_replaced or is_wrong, attribute) for is_wrong, attribute in word_labels])
    text = compose(texts[0], texts[1], verbs)
    spans = component_spans(words_of(text))
    assert spans is not None
    flags = [(False, False)] * len(words_of(text))
    for span, label in zip(spans, labels, strict=True):
        flags[span.start : span.stop] = label
    return Description(text, tuple(is_wrong for is_wrong, _ in flags), tuple(attribute for _, attribute in flags))


def _verbalize(
    parts: Sequence[Part], things: Sequence[Attributes], rng: Rng, noise_rate: float
) -> tuple[str, list[tuple[bool, bool]]]:
    """Text of a description and, for each word, whether it is wrong and whether it is an attribute."""
    words: list[str] = []
    labels: list[tuple[bool, bool]] = []
    for part in parts:
        if isinstance(part, str):
            words += part.split()
            labels += [(False, False)] * len(part.split())
            continue
        phrase = part
        for kind in _KINDS:
            wrong = _wrong_words(phrase, kind, things) if rng.chance(noise_rate) else []
            if wrong:
                phrase = phrase._replace(**{kind: rng.pick(wrong)})
            labels.append((bool(wrong), True))
        words += [word for word in phrase if word]
    return " ".join(words), labels


def _hallucinated(parts: Sequence[Part], things: Sequence[Attributes]) -> tuple[str, list[tuple[bool, bool]]]:
    """Text about an absent object that follows the first object of a description, with labels as in `_verbalize`.

    Each of its attributes is the successor of the first object's one; the text is empty if the image has this object.
    """
    first = next(part for part in parts if not isinstance(part, str))
    following = {
        kind: words[(words.index(word) + 1) % len(words)]
        for kind, words in ATTRIBUTE_WORDS.items()
        if (word := getattr(first, kind))
    }
    thing = first._replace(**following)
    if thing in things:
        return "", []
    names = [word for word in thing if word]
    return " ".join([" and a", *names]), [(True, False)] * 2 + [(True, True)] * len(names)


def _wrong_words(phrase: Attributes, kind: str, things: Sequence[Attributes]) -> list[str]:
    """Words of an attribute that make the phrase match no object; preferably words that are true of no object."""
    others = [word for word in ATTRIBUTE_WORDS[kind] if word != getattr(phrase, kind)]
    absent = [word for word in others if all(getattr(thing, kind) != word for thing in things)]
    return absent or [word for word in others if phrase._replace(**{kind: word}) not in things]


def _attributes(plain: Mapping[str, Any]) -> Attributes:
    return Attributes(*(plain[kind] for kind in _KINDS))


class DescribedSource(PairSource):
    """Rendered pairs with one implicit-change description each instead of their captions.

    Args:
        source: source of rendered pairs of a mode with a single change.
        words: fraction of wrong attribute words, see :func:`describe`.
        descriptions: fraction of object descriptions of another pair, see :func:`describe`.
        seed: seed of verbs and noise.
        hallucinations: fraction of object descriptions with an absent object, see :func:`describe`.
    """

    def __init__(
        self, source: SyntheticSource, words: float, descriptions: float, seed: int, hallucinations: float = 0.0
    ) -> None:
        self.source = source
        self.ids = source.ids
        rates = (words, descriptions, hallucinations)
        self.described = [self._describe(index, rates, seed) for index in range(len(source))]

    def _describe(self, index: int, rates: tuple[float, float, float], seed: int) -> Description:
        words, descriptions, hallucinations = rates
        split = ("train", "val", "test").index(self.source.key.split)
        rng = Rng(np.random.default_rng([_STREAM, seed, split, index]))
        other = (index + rng.integer(1, max(1, len(self.source) - 1))) % len(self.source)
        other_ground_truth = self.source.ground_truth(other) if descriptions and other != index else None
        return describe(self.source.ground_truth(index), rng, words, descriptions, other_ground_truth, hallucinations)

    def captions(self, index: int) -> list[str]:
        return [self.described[index].text]

    def change_type(self, index: int) -> str:
        return self.source.change_type(index)

    def load(self, index: int) -> PairSample:
        # boxes, masks and ground truth are slow to load and not used in pre-training
        before, after = torch.from_numpy(np.array(self.source.images[index]))
        return PairSample(self.ids[index], before, after, self.captions(index), self.change_type(index))


class SyntheticDescriptions(SyntheticPairs):
    """`SyntheticPairs` with noisy implicit-change descriptions, for pre-training.

    The test split has no noise; training and validation splits have noise, because noise detection must be measured on
    held-out noise.

    Args:
        word_noise: fraction of wrong attribute words, see :func:`describe`.
        description_noise: fraction of object descriptions that belong to another pair.
        noise_seed: seed of verbs and noise.
        hallucinations: fraction of object descriptions that also mention an absent object.
        kwargs: arguments of `SyntheticPairs`; the mode must have a single change, and ``relations`` must be
            ``always``, since descriptions consist of objects and their relations.

    Raises:
        ConfigError: a fraction is not in [0, 1], the mode has several changes, or ``relations`` is not ``always``.

    Example:
        >>> data = SyntheticDescriptions(train_pairs=2, val_pairs=1, test_pairs=1, render_size=16, progress=False)
        >>> len(data.dataset("train")), len(data.dataset("train")[0].captions)
        (2, 1)
    """

    def __init__(
        self,
        word_noise: Share = 0.2,
        description_noise: Share = 0.1,
        noise_seed: int = 0,
        mode: str = "clevr_change",
        relations: Relations = "always",
        hallucinations: Share = 0.0,
        **kwargs: Any,
    ) -> None:
        check_arguments(SyntheticDescriptions.__init__, locals())
        if mode == "omnidiff":
            raise ConfigError("descriptions need a mode with a single change; use clevr_change or clevr_dc")
        if relations != "always":
            raise ConfigError(
                f"relations is {relations!r}; expected 'always', since descriptions contain the positions of objects"
            )
        super().__init__(mode=mode, relations=relations, **kwargs)

        self._noise = (word_noise, description_noise, hallucinations)
        self._noise_seed = noise_seed
        self._described: dict[str, DescribedSource] = {}

    def source(self, split: Split) -> Any:
        """Return the pairs of a split with their descriptions."""
        name = "test" if split == "predict" else split
        if name not in self._described:
            words, descriptions, hallucinations = (0.0, 0.0, 0.0) if name == "test" else self._noise
            self._described[name] = DescribedSource(
                super().source(split), words, descriptions, self._noise_seed, hallucinations
            )
        return self._described[name]

    def planted(self, split: Split, id: str) -> Description:
        """Return the description of a pair with labels of its planted noise."""
        return self.source(split).described[int(id.rpartition("-")[2])]

    def facts(self, split: Split, id: str, caption: str) -> dict[str, bool | None]:
        """Check, for each image, whether a caption contains its noise-free description."""
        ground_truth = self._rendered_pairs(split).ground_truth(int(id.rpartition("-")[2]))
        predicted = components(caption)
        expected = components(describe(ground_truth, Rng(np.random.default_rng(0))).text)
        assert expected is not None
        sides = enumerate(("before", "after"))
        return {side: predicted is not None and predicted[i] == expected[i] for i, side in sides}

    def train_captions(self) -> list[str]:
        """Descriptions and plain captions of the training pairs, so that fine-tuning can use the same vocabulary."""
        rendered = self._rendered_pairs("train")
        indices = range(len(self.pairs_of("train")))
        return super().train_captions() + [caption for index in indices for caption in rendered.captions(index)]

    def no_change_captions(self) -> list[str]:
        """Distinct plain captions of unchanged training pairs."""
        rendered = self._rendered_pairs("train")
        unchanged = (index for index in range(len(self.pairs_of("train"))) if rendered.change_type(index) == NO_CHANGE)
        return list(dict.fromkeys(caption for index in unchanged for caption in rendered.captions(index)))

    def _rendered_pairs(self, split: Split) -> SyntheticSource:
        source: DescribedSource = self.source(split)
        return source.source
