"""CLEVR-DC: rendered tables seen from two viewpoints far apart."""

from __future__ import annotations

from typing import Any

from lightning_idc.data.annotations import sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.benchmarks.clevr_change import numbers_of
from lightning_idc.data.datamodule import Split
from lightning_idc.data.tables.files import Record
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
"""CLEVR-Change's closed set for pairs without a change; that this benchmark shares it is taken on trust."""


class CLEVRDC(Benchmark):
    """CLEVR-DC: 48,000 rendered pairs with extreme changes of viewpoint.

    The annotation files name no types of change. A pair all of whose sentences are of the generator's closed set for
    unchanged scenes is labelled ``no_change``, and any other ``change``.

    Features: rendered tables seen from viewpoints far apart, with 1 changed object or none; several sentences a pair.
    Format: PNG and JSON.
    Splits: 40,800 train, 2,400 val and 4,800 test pairs.
    Licence: not stated.
    Cite: Kim, Kim, Lee, Park, Kim: Agnostic Change Captioning with Cycle Consistency (ICCV 2021),
        https://github.com/hsgkim/clevr-dc

    Args:
        options: of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = CLEVRDC.split("data/clevr_dc", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "clevr_dc"
    title = "CLEVR-DC"
    tree = """
bef/0.png                  before; also 000000.png
aft/0.png                  after
captions.json              {"0": [sentences], ...}; also captions_dc.json
split.json                 {"train": [numbers], "val": [...], "test": [...]}"""
    steps = (
        "fetch the archive that the README of the repository hsgkim/clevr-dc links (by hand), unpack it, and give the "
        "folder with bef and aft as root."
    )
    remotes = tuple(
        Remote(path, "https://github.com/hsgkim/clevr-dc", page=True) for path in ("bef", "aft", "split.json")
    )

    def annotations(self, split: Split) -> list[list[str]]:
        return [["split.json", "splits.json"], ["captions.json", "captions_dc.json"]]

    def expected(self, split: Split) -> Counts:
        return Counts(pairs=PAIRS[split])

    def read(self, split: Split) -> list[Record]:
        captions: dict[str, Any] = read_json(self.file("captions.json", "captions_dc.json"), dict)
        numbers = numbers_of(self.file("split.json", "splits.json"), split)
        # the release numbers images without zeros, the copies that other repositories made with six digits
        padded = bool(numbers) and not self.files.file(f"bef/{numbers[0]}.png", self.title).is_file()
        padded = padded and self.files.file(f"bef/{numbers[0]:06d}.png", self.title).is_file()
        records = []
        for number in numbers:
            where = f"{self.title} pair {number}"
            if str(number) not in captions:
                raise DataError(f"{where}: the captions hold no {str(number)!r}")
            texts = sentences(captions[str(number)], where)
            image = f"{number:06d}.png" if padded else f"{number}.png"
            before, after = (self.files.file(f"{side}/{image}", where) for side in ("bef", "aft"))
            same = bool(texts) and all(text.lower().rstrip(" .") in UNCHANGED for text in texts)
            records.append(Record(str(number), where, before, after, texts, change_type=NO_CHANGE if same else CHANGE))
        return records
