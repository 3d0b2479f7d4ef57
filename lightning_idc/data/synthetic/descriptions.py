"""Implicit-change descriptions of rendered pairs, with a known share of wrong words and wrong descriptions.

A stand-in for descriptions that a large model wrote: since the noise is planted, it can be measured how well it is
found. What is planted is a claim that the picture contradicts, never a word of another language or topic, which
anything would notice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lightning_idc.data.benchmarks.implicit_change import component_spans, components, compose
from lightning_idc.data.datamodule import Split
from lightning_idc.data.source import PairSource
from lightning_idc.data.synthetic.claims import Attributes, claim_of
from lightning_idc.data.synthetic.datamodule import SyntheticPairs
from lightning_idc.data.synthetic.phrases import RELATION_PHRASES
from lightning_idc.data.synthetic.sampling import Relations, Rng
from lightning_idc.data.synthetic.source import SyntheticSource
from lightning_idc.data.synthetic.truth import ATTRIBUTE_WORDS
from lightning_idc.images.types import PairSample
from lightning_idc.metrics.no_change import NO_CHANGE
from lightning_idc.nn.vocabulary import words_of
from lightning_idc.utils.errors import ConfigError

_VERBS = ("shows", "depicts", "displays", "presents", "contains", "features")
_KINDS = tuple(ATTRIBUTE_WORDS)
_STREAM = 0x1DC
"""Keeps the numbers that descriptions are drawn with apart from those of the scenes."""

Part = str | Attributes
"""A piece of an object description: plain words, or the attributes of one thing."""


@dataclass(frozen=True, slots=True)
class Description:
    """An implicit-change description and what is wrong with it.

    Args:
        text: the sentence.
        wrong: one per word of ``words_of(text)``: True where noise was planted.
        attribute: one per word: True where it names an attribute within an object description.
    """

    text: str
    wrong: tuple[bool, ...]
    attribute: tuple[bool, ...]


def object_descriptions(truth: Mapping[str, Any]) -> tuple[list[Part], list[Part]]:
    """What to say of the before and of the after image: the thing that changes and its anchor.

    Args:
        truth: of a pair of a mode with a single change.
    """
    if not truth["changes"]:
        things = [_attributes(plain) for plain in truth["before"]["things"][:2]]
        both: list[Part] = ["a", things[0], "and a", things[1]]
        return both, list(both)
    claim = claim_of(truth["changes"][0])
    assert claim.thing is not None and claim.anchor is not None and claim.relation is not None
    where = RELATION_PHRASES[claim.relation]
    there: list[Part] = ["a", claim.thing, f"{where} a", claim.anchor]
    bare: list[Part] = ["a", claim.anchor, f"with nothing {where} it"]
    if claim.kind == "add":
        return bare, there
    if claim.kind == "drop":
        return there, bare
    if claim.kind == "move":
        return there, ["a", claim.thing, "away from a", claim.anchor]
    changed = _attributes(truth["after"]["things"][truth["changes"][0]["after"][0]])
    return there, ["a", changed, f"{where} a", claim.anchor]


def describe(
    truth: Mapping[str, Any],
    rng: Rng,
    words: float = 0.0,
    descriptions: float = 0.0,
    other: Mapping[str, Any] | None = None,
    hallucinations: float = 0.0,
) -> Description:
    """Describe a pair, partly wrongly.

    Args:
        truth: of the pair.
        rng: draws verbs and noise.
        words: share of attribute words that are replaced by another word of their kind, such that the phrase
            names nothing in the image; where there is one, a word that is true of no thing in the image.
        descriptions: share of object descriptions that are replaced by those of ``other``.
        other: truth of another pair.
        hallucinations: share of object descriptions that go on to name a thing which is not there, always the same
            beside the same thing, as a model that has learned what goes with what does.
    """
    sides = object_descriptions(truth)
    strangers = None if other is None else object_descriptions(other)
    verbs = (rng.pick(_VERBS), rng.pick(_VERBS))
    texts: list[str] = []
    labels: list[list[tuple[bool, bool]]] = []
    for side, (name, parts) in enumerate(zip(("before", "after"), sides, strict=True)):
        strange = strangers is not None and rng.chance(descriptions)
        things = [_attributes(plain) for plain in truth[name]["things"]]
        said, wrong = _say(strangers[side] if strange else parts, things, rng, 0.0 if strange else words)  # type: ignore[index]
        if hallucinations and not strange and rng.chance(hallucinations):
            told, false = _hallucinated(parts, things)
            said, wrong = said + told, wrong + false
        texts.append(said)
        labels.append([(strange or false, attribute) for false, attribute in wrong])
    text = compose(texts[0], texts[1], verbs)
    spans = component_spans(words_of(text))
    assert spans is not None
    flags = [(False, False)] * len(words_of(text))
    for span, label in zip(spans, labels, strict=True):
        flags[span.start : span.stop] = label
    return Description(text, tuple(wrong for wrong, _ in flags), tuple(attribute for _, attribute in flags))


def _say(
    parts: Sequence[Part], things: Sequence[Attributes], rng: Rng, share: float
) -> tuple[str, list[tuple[bool, bool]]]:
    """Words of a description with, for each, whether it is wrong and whether it names an attribute."""
    said: list[str] = []
    labels: list[tuple[bool, bool]] = []
    for part in parts:
        if isinstance(part, str):
            said += part.split()
            labels += [(False, False)] * len(part.split())
            continue
        phrase = part
        for kind in _KINDS:
            wrong = _wrong_words(phrase, kind, things) if rng.chance(share) else []
            if wrong:
                phrase = phrase._replace(**{kind: rng.pick(wrong)})
            labels.append((bool(wrong), True))
        said += [word for word in phrase if word]
    return " ".join(said), labels


def _hallucinated(parts: Sequence[Part], things: Sequence[Attributes]) -> tuple[str, list[tuple[bool, bool]]]:
    """What is said beside the first thing of a description though it is not there, with labels as of `_say`.

    It is the next of each kind of attribute, and nothing where the image has just that.
    """
    known = next(part for part in parts if not isinstance(part, str))
    following = {
        kind: words[(words.index(word) + 1) % len(words)]
        for kind, words in ATTRIBUTE_WORDS.items()
        if (word := getattr(known, kind))
    }
    thing = known._replace(**following)
    if thing in things:
        return "", []
    names = [word for word in thing if word]
    return " ".join([" and a", *names]), [(True, False)] * 2 + [(True, True)] * len(names)


def _wrong_words(phrase: Attributes, kind: str, things: Sequence[Attributes]) -> list[str]:
    """Words in whose company a phrase is true of nothing; none where another thing has what each would say."""
    others = [word for word in ATTRIBUTE_WORDS[kind] if word != getattr(phrase, kind)]
    absent = [word for word in others if all(getattr(thing, kind) != word for thing in things)]
    return absent or [word for word in others if phrase._replace(**{kind: word}) not in things]


def _attributes(plain: Mapping[str, Any]) -> Attributes:
    return Attributes(*(plain[kind] for kind in _KINDS))


class DescribedSource(PairSource):
    """Rendered pairs with one implicit-change description each in place of their captions.

    Args:
        source: rendered pairs of a mode with a single change.
        words: as in :func:`describe`.
        descriptions: as in :func:`describe`.
        seed: of verbs and noise.
        hallucinations: as in :func:`describe`.
    """

    def __init__(
        self, source: SyntheticSource, words: float, descriptions: float, seed: int, hallucinations: float = 0.0
    ) -> None:
        self.source = source
        self.ids = source.ids
        shares = (words, descriptions, hallucinations)
        self.described = [self._describe(index, shares, seed) for index in range(len(source))]

    def _describe(self, index: int, shares: tuple[float, float, float], seed: int) -> Description:
        words, descriptions, hallucinations = shares
        split = ("train", "val", "test").index(self.source.key.split)
        rng = Rng(np.random.default_rng([_STREAM, seed, split, index]))
        other = (index + rng.integer(1, max(1, len(self.source) - 1))) % len(self.source)
        stranger = self.source.truth(other) if descriptions and other != index else None
        return describe(self.source.truth(index), rng, words, descriptions, stranger, hallucinations)

    def captions(self, index: int) -> list[str]:
        return [self.described[index].text]

    def change_type(self, index: int) -> str:
        return self.source.change_type(index)

    def load(self, index: int) -> PairSample:
        # without boxes, masks and truth, which pre-training does not read: they are most of the work
        before, after = torch.from_numpy(np.array(self.source.images[index]))
        return PairSample(self.ids[index], before, after, self.captions(index), self.change_type(index))


class SyntheticDescriptions(SyntheticPairs):
    """`SyntheticPairs` with noisy implicit-change descriptions, for pre-training.

    The test split is described without noise. Training and validation carry it: what masks noise must be measured on
    noise that it was not trained on.

    Args:
        word_noise: share of wrong attribute words, see :func:`describe`.
        description_noise: share of object descriptions that belong to another pair.
        noise_seed: of verbs and noise.
        hallucinations: share of object descriptions that also name a thing which is not there.
        kwargs: arguments of `SyntheticPairs`; a mode with a single change. Relations are said always, since they are
            half of what a description describes.

    Raises:
        ConfigError: a share is not between 0 and 1, the mode has several changes, or ``relations`` is not ``always``.

    Example:
        >>> data = SyntheticDescriptions(train_pairs=2, val_pairs=1, test_pairs=1, render_size=16, progress=False)
        >>> len(data.dataset("train")), len(data.dataset("train")[0].captions)
        (2, 1)
    """

    def __init__(
        self,
        word_noise: float = 0.2,
        description_noise: float = 0.1,
        noise_seed: int = 0,
        mode: str = "clevr_change",
        relations: Relations = "always",
        hallucinations: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if mode == "omnidiff":
            raise ConfigError("descriptions tell a single change; take the mode clevr_change or clevr_dc")
        if relations != "always":
            raise ConfigError(f"relations is {relations!r}; descriptions say where things stand: leave it at 'always'")
        super().__init__(mode=mode, relations=relations, **kwargs)
        shares = {"word_noise": word_noise, "description_noise": description_noise, "hallucinations": hallucinations}
        for name, share in shares.items():
            if not 0 <= share <= 1:
                raise ConfigError(f"{name} is {share}; expected a share between 0 and 1")
        self._noise = (word_noise, description_noise, hallucinations)
        self._noise_seed = noise_seed
        self._described: dict[str, DescribedSource] = {}

    def source(self, split: Split) -> Any:
        """Pairs of a split with their descriptions."""
        name = "test" if split == "predict" else split
        if name not in self._described:
            words, descriptions, hallucinations = (0.0, 0.0, 0.0) if name == "test" else self._noise
            self._described[name] = DescribedSource(
                super().source(split), words, descriptions, self._noise_seed, hallucinations
            )
        return self._described[name]

    def planted(self, split: Split, id: str) -> Description:
        """Description of a pair with what is wrong in it."""
        return self.source(split).described[int(id.rpartition("-")[2])]

    def facts(self, split: Split, id: str, caption: str) -> dict[str, bool | None]:
        """Whether a caption describes the before and the after image exactly as it would be without noise."""
        truth = self._rendered_pairs(split).truth(int(id.rpartition("-")[2]))
        said = components(caption)
        right = components(describe(truth, Rng(np.random.default_rng(0))).text)
        assert right is not None
        return {side: said is not None and said[i] == right[i] for i, side in enumerate(("before", "after"))}

    def train_captions(self) -> list[str]:
        """Descriptions and plain captions of the training pairs, so that one vocabulary serves the fine-tuning, too."""
        plain = self._rendered_pairs("train")
        used = range(len(self.pairs_of("train")))
        return super().train_captions() + [caption for index in used for caption in plain.captions(index)]

    def no_change_captions(self) -> list[str]:
        """Sentences of unchanged pairs among the plain captions."""
        plain = self._rendered_pairs("train")
        unchanged = (index for index in range(len(self.pairs_of("train"))) if plain.change_type(index) == NO_CHANGE)
        return list(dict.fromkeys(caption for index in unchanged for caption in plain.captions(index)))

    def _rendered_pairs(self, split: Split) -> SyntheticSource:
        source: DescribedSource = self.source(split)
        return source.source
