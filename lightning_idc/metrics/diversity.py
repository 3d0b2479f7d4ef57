"""Diversity of captions, which reveals a captioner that scores well by repeating one sentence."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from lightning_idc.metrics.no_change import no_change_rule
from lightning_idc.metrics.tokenizer import ptb_tokenize

COLLAPSE_THRESHOLD = 0.5
"""Fraction of the most frequent caption at which :meth:`Diversity.remarks` warns."""


@dataclass(frozen=True)
class Diversity:
    """Statistics of captions; fractions are 0 to 1.

    Args:
        captions: number of captions.
        distinct: fraction of captions that occur once.
        most_common: most frequent caption.
        most_common_share: its fraction of all captions.
        empty: fraction of captions without a word.
        no_change: fraction of captions that say nothing changed.
        words: mean number of words.
        longest: number of words of the longest caption.
        vocabulary: number of distinct words.
        distinct_1: distinct words per word.
        distinct_2: distinct bigrams per bigram.
        repeating: fraction of captions that repeat a trigram.
    """

    captions: int
    distinct: float
    most_common: str
    most_common_share: float
    empty: float
    no_change: float
    words: float
    longest: int
    vocabulary: int
    distinct_1: float
    distinct_2: float
    repeating: float

    def as_dict(self) -> dict[str, float | int | str]:
        """Plain values, rounded."""
        return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(self).items()}

    def remarks(self) -> list[str]:
        """Warnings for readers of the scores."""
        remarks = []
        if self.captions > 1 and self.most_common_share >= COLLAPSE_THRESHOLD:
            remarks.append(f"{self.most_common_share:.0%} of all captions are {self.most_common!r}")
        if self.empty:
            remarks.append(f"{self.empty:.1%} of all captions are empty")
        if self.repeating >= 0.1:
            remarks.append(f"{self.repeating:.0%} of all captions repeat a sequence of three words")
        return remarks


def diversity(captions: Sequence[str], sentences: Iterable[str] = ()) -> Diversity:
    """Measure how captions vary.

    Args:
        captions: at least one caption.
        sentences: additional sentences that say nothing changed; see `no_change_rule`.
    """
    tokens = [tuple(ptb_tokenize(caption)) for caption in captions]
    counts = Counter(tokens)
    says_no_change = no_change_rule(dict.fromkeys(sentences))
    words = Counter(word for caption in tokens for word in caption)
    bigrams = Counter(pair for caption in tokens for pair in pairwise(caption))
    most_common, num_most_common = max(counts.items(), key=lambda item: (item[1], item[0]))
    num_captions = len(tokens)
    return Diversity(
        captions=num_captions,
        distinct=sum(number == 1 for number in counts.values()) / num_captions,
        most_common=" ".join(most_common),
        most_common_share=num_most_common / num_captions,
        empty=counts[()] / num_captions,
        no_change=sum(map(says_no_change, captions)) / num_captions,
        words=words.total() / num_captions,
        longest=max(map(len, tokens)),
        vocabulary=len(words),
        distinct_1=len(words) / max(words.total(), 1),
        distinct_2=len(bigrams) / max(bigrams.total(), 1),
        repeating=sum(_repeats_trigram(caption) for caption in tokens) / num_captions,
    )


def _repeats_trigram(tokens: Sequence[str]) -> bool:
    trigrams = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    return len(set(trigrams)) < len(trigrams)
