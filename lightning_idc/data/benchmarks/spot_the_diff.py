"""Spot-the-Diff: frames of surveillance cameras with human-written differences."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

from lightning_idc.data.annotations import required_text, sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote, count
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.data.tables.tables import read_objects
from lightning_idc.utils.bounds import PositiveInt, check_arguments

Grouping = Literal["grouped", "entry", "multi"]
EmptyReferences = Literal["leave_out", "keep"]
RECORDS = {"train": 9_524, "val": 1_634, "test": 1_404}
PAIRS = {"train": 8_566, "val": 1_493, "test": 1_270}
SENTENCES = {"train": 17_676, "val": 3_310, "test": 2_107}
EMPTY = {"train": 53, "val": 6, "test": 7}
UNCAPTIONED_RECORDS = {"train": 47, "val": 6, "test": 7}
UNCAPTIONED_PAIRS = {"train": 37, "val": 4, "test": 7}

_RAW = "https://raw.githubusercontent.com/harsh19/spot-the-diff/d26bdcd4f2d33246355a503c3f8f1def9295dda2/data"


class SpotTheDiff(Benchmark):
    """Spot-the-Diff: 12,562 annotation records on 11,329 pairs of frames from fixed cameras.

    Each pair was annotated by one to three people, with one record of several sentences each. The literature groups
    the records in three ways; scores are not comparable between them:

    - ``grouped``: one pair per image, with the sentences of all records as its references (the single-sentence
      protocol; 1,270 test pairs);
    - ``entry``: one pair per record, with ids ``ID``, ``ID#2``, ... (1,404 test pairs);
    - ``multi``: one pair per image, with all sentences joined to one paragraph as its only reference (1,270).

    The scoring protocol is that of the grouping, ``spot-the-diff/grouped`` and so on. Empty sentences (66) are left
    out. Seven test pairs have no other sentence; published scores count them, although no caption scores above 0 there,
    and so does this class. ``empty_references: leave_out`` leaves such pairs out of validation and test, as training
    always does.

    Features: frames of surveillance cameras, minutes apart; annotations by one to three people per pair.
    Format: PNG and JSON.
    Splits: 9,524 train, 1,634 val and 1,404 test records, on 8,566, 1,493 and 1,270 pairs.
    Licence: not stated.
    Cite: Jhamtani, Berg-Kirkpatrick: Learning to Describe Differences Between Pairs of Similar Images (EMNLP 2018),
        https://github.com/harsh19/spot-the-diff

    Args:
        grouping: grouping of the records, see above.
        max_words: maximum length of the paragraph of ``multi`` (60 in CARD); None for no limit.
        empty_references: treatment of validation and test pairs without a sentence: ``keep`` or ``leave_out``.
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = SpotTheDiff.split("data/spot_the_diff", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "spot_the_diff"
    title = "Spot-the-Diff"
    protocol = "spot-the-diff/grouped"
    tree = """
resized_images/76.png, 76_2.png      before and after
annotations/train.json               [{"img_id": "76", "sentences": ["there are no differences"]}, ...]
annotations/val.json, test.json"""
    steps = (
        "`lightning-idc data prepare spot_the_diff --root FOLDER` downloads the annotations from the repository "
        "harsh19/spot-the-diff; the images come from the Google Drive link in its data/get_images.txt, by hand."
    )
    remotes = (
        Remote(
            "annotations/train.json",
            f"{_RAW}/annotations/train.json",
            1_327_514,
            "a9b6f0ac21694bf733aae6a345e9552700948ae065a61c0eb68e5d2f82a0962e",
        ),
        Remote(
            "annotations/val.json",
            f"{_RAW}/annotations/val.json",
            245_863,
            "8d5518e3a6eabb5207e20c8c16323f9440a22ce725cc5a8d66e5bd58ec2c7df5",
        ),
        Remote(
            "annotations/test.json",
            f"{_RAW}/annotations/test.json",
            161_451,
            "72e8e9fd50553a132ee97e401f0586a4bbd75458ee322168787aca565d980e1f",
        ),
        Remote("resized_images", f"{_RAW}/get_images.txt", page=True),
    )

    def __init__(
        self,
        root: str | Path | None = None,
        grouping: Grouping = "grouped",
        max_words: PositiveInt | None = None,
        empty_references: EmptyReferences = "keep",
        **options: Any,
    ) -> None:
        check_arguments(SpotTheDiff.__init__, locals())
        super().__init__(root, **options)
        self.grouping: Grouping = grouping
        self.protocol = f"spot-the-diff/{grouping}"
        self.empty_references: EmptyReferences = empty_references
        self.max_words = max_words
        self._counts: dict[str, Counts] = {}

    def annotations(self, split: Split) -> list[list[str]]:
        return [[f"annotations/{split}.json", f"{split}.json"]]

    def expected(self, split: Split) -> Counts:
        entry = self.grouping == "entry"
        uncaptioned = UNCAPTIONED_RECORDS if entry else UNCAPTIONED_PAIRS
        pairs = RECORDS if entry else PAIRS
        return Counts(pairs[split], SENTENCES[split], EMPTY[split], uncaptioned[split], RECORDS[split])

    def heading(self) -> str:
        return f"{self.title} ({self.grouping})"

    def remarks(self) -> list[str]:
        meaning = {
            "grouped": "one pair per image, with the sentences of all its records as references",
            "entry": "one pair per record",
            "multi": "one pair per image, with all sentences of its records joined to one reference",
        }
        entry = self.grouping == "entry"
        totals, uncaptioned = (RECORDS, UNCAPTIONED_RECORDS) if entry else (PAIRS, UNCAPTIONED_PAIRS)
        with_uncaptioned = (
            f"{totals['test']:,} test pairs, as in published numbers: {uncaptioned['test']} without a sentence score 0"
        )
        without_uncaptioned = (
            f"{totals['test'] - uncaptioned['test']:,} test pairs; {uncaptioned['test']} more, which published numbers "
            "count, have no sentence and are left out (empty_references: leave_out)"
        )
        others = ", ".join(name for name in get_args(Grouping) if name != self.grouping)
        return [
            f"grouping {self.grouping}: {meaning[self.grouping]}; scores are not comparable with those of {others}",
            with_uncaptioned if self.empty_references == "keep" else without_uncaptioned,
        ]

    def keeps_uncaptioned(self, split: Split) -> bool:
        return self.empty_references == "keep" and split != "train"

    def counts(self, split: Split) -> Counts:
        self.records(split)
        return self._counts[split]

    def read(self, split: Split) -> list[PairRecord]:
        rows = read_objects(self.file(*self.annotations(split)[0]))
        pairs: dict[str, PairRecord] = {}
        occurrences: dict[str, int] = {}
        for row in rows:
            name = required_text(row, "img_id")
            occurrences[name] = occurrences.get(name, 0) + 1
            before, after = (self.files.file(f"resized_images/{name}{ending}.png", row.where) for ending in ("", "_2"))
            key = f"{name}#{occurrences[name]}" if self.grouping == "entry" and occurrences[name] > 1 else name
            record = PairRecord(key, row.where, before, after, sentences(row.values.get("sentences"), row.where))
            if pairs.setdefault(key, record) is not record:
                pairs[key].captions += record.captions
        records = list(pairs.values())
        self._counts[split] = count(records, len(rows))
        return [replace(r, captions=[self._paragraph(r.captions)]) for r in records] if self._joins else records

    @property
    def _joins(self) -> bool:
        return self.grouping == "multi"

    def _paragraph(self, captions: list[str]) -> str:
        return " ".join(". ".join(filter(None, captions)).split()[: self.max_words])
