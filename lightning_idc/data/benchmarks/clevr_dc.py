"""CLEVR-DC: rendered tables from two distant viewpoints."""

from __future__ import annotations

from typing import Any

from lightning_idc.data.annotations import sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.benchmarks.clevr_change import numbers_of
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.metrics.no_change import CHANGE, NO_CHANGE
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import read_json

PAIRS = {"train": 40_800, "val": 2_400, "test": 4_800}
UNCHANGED = frozenset(
    {
        "no change was made",
        "no change has occurred",
        "nothing has changed",
        "nothing was modified",
        "the scene is the same as before",
        "the scene remains the same",
        "the two scenes seem identical",
        "there is no change",
    }
)
"""CLEVR-Change's closed set of sentences for unchanged pairs; we assume that CLEVR-DC uses the same set."""


class CLEVRDC(Benchmark):
    """CLEVR-DC: 48,000 rendered pairs with extreme changes of viewpoint.

    The annotation files have no types of change. A pair is labelled ``no_change`` if all its sentences are in the
    generator's closed set for unchanged scenes, and ``change`` otherwise.

    Features: rendered tables from distant viewpoints, with 1 changed object or none; several sentences per pair.
    Format: PNG and JSON.
    Splits: 40,800 train, 2,400 val and 4,800 test pairs.
    Licence: not stated.
    Cite: Kim, Kim, Lee, Park, Kim: Agnostic Change Captioning with Cycle Consistency (ICCV 2021),
        https://github.com/hsgkim/clevr-dc

    Args:
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = CLEVRDC.split("data/clevr_dc", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "clevr_dc"
    title = "CLEVR-DC"
    protocol = "coco"
    tree = """
bef/0.png                  before; also 000000.png
aft/0.png                  after
captions.json              {"0": [sentences], ...}; also captions_dc.json
split.json                 {"train": [numbers], "val": [...], "test": [...]}"""
    steps = (
        "download the archive from the link in the README of the repository hsgkim/clevr-dc by hand, unpack it, and "
        "set root to the folder with bef and aft."
    )
    remotes = tuple(
        Remote(path, "https://github.com/hsgkim/clevr-dc", page=True) for path in ("bef", "aft", "split.json")
    )

    def annotations(self, split: Split) -> list[list[str]]:
        return [["split.json", "splits.json"], ["captions.json", "captions_dc.json"]]

    def expected(self, split: Split) -> Counts:
        return Counts(pairs=PAIRS[split])

    def read(self, split: Split) -> list[PairRecord]:
        captions: dict[str, Any] = read_json(self.file("captions.json", "captions_dc.json"), dict)
        pair_numbers = numbers_of(self.file("split.json", "splits.json"), split)
        # image names have no leading zeros in the release, and six digits in the copies of other repositories
        is_padded = bool(pair_numbers) and not self.files.file(f"bef/{pair_numbers[0]}.png", self.title).is_file()
        is_padded = is_padded and self.files.file(f"bef/{pair_numbers[0]:06d}.png", self.title).is_file()
        records = []
        for number in pair_numbers:
            where = f"{self.title} pair {number}"
            if str(number) not in captions:
                raise DataError(f"{where}: no captions for {str(number)!r}")
            texts = sentences(captions[str(number)], where)
            image = f"{number:06d}.png" if is_padded else f"{number}.png"
            before, after = (self.files.file(f"{side}/{image}", where) for side in ("bef", "aft"))
            is_unchanged = bool(texts) and all(text.lower().rstrip(" .") in UNCHANGED for text in texts)
            change_type = NO_CHANGE if is_unchanged else CHANGE
            records.append(PairRecord(str(number), where, before, after, texts, change_type=change_type))
        return records
