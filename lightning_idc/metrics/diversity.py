"""How captions vary: a captioner that always says the same can score well, and these numbers show it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise

from lightning_idc.metrics.no_change import no_change_rule
from lightning_idc.metrics.tokenizer import ptb_tokenize

COLLAPSED = 0.5


@dataclass(frozen=True)
class Diversity:
    """Shares are 0 to 1.

    Args:
        captions: how many there are.
        distinct: share of captions that no other equals; 1 where all differ.
        most_common: the caption that is said most.
        most_common_share: of all captions.
        empty: share of captions without a word.
        no_change: share of captions that say nothing changed, in whatever words.
        words: mean number of words.
        longest: most words of any.
        vocabulary: distinct words of all captions.
        distinct_1: distinct words per word.
        distinct_2: distinct bigrams per bigram.
        repeating: share of captions in which some run of three words comes again.
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
        """What a reader of scores should know before believing them."""
        found = []
        if self.captions > 1 and self.most_common_share >= COLLAPSED:
            found.append(f"{self.most_common_share:.0%} of all captions are {self.most_common!r}")
        if self.empty:
            found.append(f"{self.empty:.1%} of all captions are empty")
        if self.repeating >= 0.1:
            found.append(f"{self.repeating:.0%} of all captions repeat a run of three words")
        return found


def diversity(captions: Sequence[str], sentences: Iterable[str] = ()) -> Diversity:
    """Measure how captions vary.

    Args:
        captions: at least one.
        sentences: known to say nothing changed, besides those that `no_change_rule` knows by itself.
    """
    tokens = [tuple(ptb_tokenize(caption)) for caption in captions]
    said = Counter(tokens)
    says_no_change = no_change_rule(dict.fromkeys(sentences))
    words = Counter(word for caption in tokens for word in caption)
    bigrams = Counter(pair for caption in tokens for pair in pairwise(caption))
    most, times = max(said.items(), key=lambda item: (item[1], item[0]))
    count = len(tokens)
    return Diversity(
        count,
        sum(number == 1 for number in said.values()) / count,
        " ".join(most),
        times / count,
        said[()] / count,
        sum(map(says_no_change, captions)) / count,
        words.total() / count,
        max(map(len, tokens)),
        len(words),
        len(words) / max(words.total(), 1),
        len(bigrams) / max(bigrams.total(), 1),
        sum(_repeats(caption) for caption in tokens) / count,
    )


def _repeats(tokens: Sequence[str]) -> bool:
    runs = list(zip(tokens, tokens[1:], tokens[2:], strict=False))
    return len(set(runs)) < len(runs)
