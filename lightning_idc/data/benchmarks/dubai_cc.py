"""Dubai-CC: pairs of Landsat tiles of Dubai."""

from __future__ import annotations

from pathlib import Path

from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.benchmarks.levir_cc import listed_images
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import read_json

PAIRS = {"train": 300, "val": 50, "test": 150}
_SENTENCES = "description_jsontr_te_val"
_TILES = "imgs_tiles/RGB"


class DubaiCC(Benchmark):
    """Dubai-CC: 500 pairs of Landsat tiles of Dubai in 2000 and 2010, 50 x 50 pixels, with five sentences each.

    Features: tiles of one satellite image per year; five sentences per pair.
    Format: TIFF and JSON.
    Splits: 300 train, 50 val and 150 test pairs.
    Licence: none is stated; see the README of the archive.
    Cite: Hoxha, Chouaf, Melgani, Smara: Change Captioning: A New Paradigm for Multitemporal Remote Sensing Image
        Analysis (TGRS 2022), https://disi.unitn.it/~melgani/datasets.html

    Args:
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = DubaiCC.split("data/dubai_cc", "test")[0]
        >>> len(pair.captions)
        5
    """

    folder = "dubai_cc"
    title = "Dubai-CC"
    tree = f"""
{_SENTENCES}/*.json       a file per split, named after it: {{"images": [{{"filename", "sentences": [...]}}, ...]}}
{_TILES}/500_2000/NAME.tif            before
{_TILES}/500_2010/NAME.tif            after"""
    steps = (
        "fetch DubaiCC.rar from the page of the authors, unpack it, and give the folder datasetDubaiCCPublic as root."
    )
    remotes = (Remote(_TILES, "https://disi.unitn.it/~melgani/datasets.html", page=True),)

    def annotations(self, split: Split) -> list[list[str]]:
        return [[self._sentences(split)]]

    def expected(self, split: Split) -> Counts:
        return Counts(PAIRS[split], 5 * PAIRS[split], 0, 0)

    def read(self, split: Split) -> list[PairRecord]:
        path = self.file(self._sentences(split))
        records = []
        for where, name, _, texts in listed_images(path, read_json(path, dict).get("images"), split):
            before, after = (self.files.file(f"{_TILES}/500_{year}/{name}", where) for year in (2000, 2010))
            records.append(PairRecord(name, where, before, after, texts))
        return records

    def _sentences(self, split: Split) -> str:
        """File of sentences of a split, which its name contains.

        Raises:
            DataError: there are several.
        """
        folder = self.root / _SENTENCES
        names = [path.name for path in sorted(folder.glob("*.json"))] if folder.is_dir() else []
        names = [name for name in names if split in Path(name).stem.lower()]
        if len(names) > 1:
            raise DataError(f"{folder} holds several files of the split {split!r}: {', '.join(names)}")
        return f"{_SENTENCES}/{names[0] if names else f'{split}.json'}"
