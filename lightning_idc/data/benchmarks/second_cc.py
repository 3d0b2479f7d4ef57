"""SECOND-CC: pairs of aerial images with maps of land cover."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lightning_idc.data.benchmark import Benchmark, Remote, check_split
from lightning_idc.data.benchmarks.levir_cc import listed_images
from lightning_idc.data.benchmarks.masks import MaskedSource
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.metrics.no_change import CHANGE, NO_CHANGE
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import read_json

ANNOTATIONS = "SECOND-CC-AUG.json"


class SECONDCC(Benchmark):
    """SECOND-CC: 6,041 pairs of aerial images, 256 x 256 pixels, with five sentences and maps of land cover.

    Pairs whose ``changeflag`` is 0 are labelled ``no_change``, all others ``change``. ``masks`` are the pixels whose
    class differs between the two maps.

    Features: aerial images of one location, years apart; five sentences and two maps of land cover per pair.
    Format: PNG and JSON.
    Splits: train, val and test as the file of sentences names them; the counts of splits are not checked.
    Licence: see its page on Zenodo.
    Cite: Karaca, Ozelbas, Berber, Karimli, Yildirim, Amasyali: Robust Change Captioning in Remote Sensing (JSTARS
        2025), https://github.com/ChangeCapsInRS/SecondCC

    Args:
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = SECONDCC.split("data/second_cc", "test")[0]
        >>> len(pair.captions), pair.masks.shape[0]
        (5, 2)
    """

    folder = "second_cc"
    title = "SECOND-CC"
    tree = """
SECOND-CC-AUG.json                {"images": [{"filename", "split", "changeflag", "sentences": [{"raw", ...}]}, ...]}
train/rgb/A/00001.png             before; likewise val and test
train/rgb/B/00001.png             after
train/sem/A/00001.png, sem/B      maps of land cover"""
    steps = (
        "fetch SECOND-CC from Zenodo (10.5281/zenodo.16937571), unpack it, and give the folder with SECOND-CC-AUG.json "
        "as root."
    )
    remotes = (Remote(ANNOTATIONS, "https://doi.org/10.5281/zenodo.16937571", page=True),)

    def annotations(self, split: Split) -> list[list[str]]:
        return [[ANNOTATIONS]]

    def read(self, split: Split) -> list[PairRecord]:
        path = self.file(ANNOTATIONS)
        images = read_json(path, dict).get("images")
        records = []
        for (where, name, record_split, texts), image in zip(listed_images(path, images), images, strict=True):
            check_split(record_split, where)
            flag = image.get("changeflag")
            if flag not in (0, 1):
                raise DataError(f"{where}: changeflag is {flag!r}; expected 0 or 1")
            if record_split == split:
                before, after = (self.files.file(f"{record_split}/rgb/{side}/{name}", where) for side in "AB")
                change_type = CHANGE if flag else NO_CHANGE
                records.append(PairRecord(name, where, before, after, texts, change_type=change_type))
        return records

    def source_of(self, records: Sequence[PairRecord]) -> MaskedSource:
        return MaskedSource(super().source_of(records), _maps)


def _maps(before: Path) -> list[Path]:
    """Maps of land cover of both images, by the path ``SPLIT/rgb/A/NAME`` of the first image."""
    return [before.parents[2] / "sem" / side / before.name for side in "AB"]
