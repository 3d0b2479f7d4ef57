"""Statistics of a data set as in OmniDiff's tables 1 and 2: pairs, captions, words, sentences, vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_idc.metrics.tokenizer import ptb_tokenize
from lightning_idc.utils.errors import DataError

LONG_CAPTION = 20  # words; table 1 calls longer captions "long"
_SENTENCE_END = re.compile(r"[.!?]+(?=\s|$)")


@dataclass(frozen=True, slots=True)
class CaptionStatistics:
    """Statistics of the captions of a data set.

    Args:
        pairs: number of pairs.
        captions: number of captions.
        words: number of Penn Treebank tokens without punctuation, as for the metrics.
        sentences: number of sentences, including those without a final punctuation mark.
        vocabulary: number of distinct lower-cased words.
        long_captions: number of captions of more than 20 words.
    """

    pairs: int
    captions: int
    words: int
    sentences: int
    vocabulary: int
    long_captions: int

    def rows(self) -> list[tuple[str, str]]:
        """Format the rows of the printed table: name and value."""
        per_caption = max(1, self.captions)
        return [
            ("pairs", f"{self.pairs:,}"),
            ("captions", f"{self.captions:,}"),
            ("captions per pair", f"{self.captions / max(1, self.pairs):.2f}"),
            ("words per caption", f"{self.words / per_caption:.1f}"),
            ("sentences", f"{self.sentences:,}"),
            ("sentences per caption", f"{self.sentences / per_caption:.1f}"),
            ("vocabulary", f"{self.vocabulary:,}"),
            (f"captions of more than {LONG_CAPTION} words", f"{100 * self.long_captions / per_caption:.0f} %"),
        ]


def sentence_count(caption: str) -> int:
    """Count sentences; text after the last full stop counts as one, and a full stop within a number ends none."""
    parts = _SENTENCE_END.split(caption)
    return sum(1 for part in parts if part.strip())


def caption_statistics(captions: Iterable[Sequence[str]]) -> CaptionStatistics:
    """Compute the statistics of the captions of pairs.

    Args:
        captions: all captions of each pair.

    Raises:
        DataError: there are no pairs.
    """
    pairs = words = sentences = long_captions = count = 0
    vocabulary: set[str] = set()
    for texts in captions:
        pairs += 1
        for text in texts:
            tokens = ptb_tokenize(text)
            count += 1
            words += len(tokens)
            sentences += sentence_count(text)
            long_captions += len(tokens) > LONG_CAPTION
            vocabulary.update(tokens)
    if not pairs:
        raise DataError("expected at least one pair, found none")
    return CaptionStatistics(
        pairs=pairs,
        captions=count,
        words=words,
        sentences=sentences,
        vocabulary=len(vocabulary),
        long_captions=long_captions,
    )


def split_statistics(captions: dict[str, list[Sequence[str]]]) -> dict[str, CaptionStatistics]:
    """Statistics of each split and, if there are several, of all splits together.

    Args:
        captions: all captions of each pair, by split.
    """
    statistics = {split: caption_statistics(texts) for split, texts in captions.items()}
    if len(statistics) > 1:
        statistics["all"] = caption_statistics(text for texts in captions.values() for text in texts)
    return statistics
