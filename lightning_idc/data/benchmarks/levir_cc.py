"""LEVIR-CC: pairs of satellite images taken years apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lightning_idc.data.annotations import AnnotationRow, required_text, sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote, check_split
from lightning_idc.data.benchmarks.masks import MaskedSource
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.metrics.no_change import CHANGE, NO_CHANGE
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import read_json, short

PAIRS = {"train": 6_815, "val": 1_333, "test": 1_929}
UNCHANGED = frozenset(
    {
        "almost nothing has changed",
        "no change has occurred",
        "the scene is the same as before",
        "the two scenes seem identical",
        "there is no difference",
    }
)
"""The five sentences of unchanged pairs (5,038 in the paper, 5,039 in the files); no other pair has any of them."""


class LEVIRCC(Benchmark):
    """LEVIR-CC: 10,077 pairs of satellite images, 256 x 256 pixels, with five sentences each.

    About half of the pairs are unchanged and have the same five sentences; they are labelled ``no_change``, and all
    others ``change``.

    Features: satellite images of one location, years apart; five sentences per pair.
    Format: PNG and JSON.
    Splits: 6,815 train, 1,333 val and 1,929 test pairs.
    Licence: academic use.
    Cite: Liu, Zhao, Chen, Zou, Shi: Remote Sensing Image Change Captioning With Dual-Branch Transformers (TGRS 2022),
        https://github.com/Chen-Yang-Liu/LEVIR-CC-Dataset

    Args:
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = LEVIRCC.split("data/levir_cc", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "levir_cc"
    title = "LEVIR-CC"
    protocol = "levir-cc/words"
    tree = """
images/train/A/train_000001.png      before; likewise val and test
images/train/B/train_000001.png      after
LevirCCcaptions.json                 {"images": [{"filename", "split", "sentences": [{"raw", ...}]}, ...]}
levir_cc_captions.json               instead, from token files: {"train_000001.png": [sentences], ...}"""
    steps = (
        "download Levir-CC-dataset.zip from the links in the README of the repository Chen-Yang-Liu/LEVIR-CC-Dataset "
        "(by hand; academic use), unpack it, and set root to the folder with images."
    )
    remotes = tuple(
        Remote(path, "https://github.com/Chen-Yang-Liu/LEVIR-CC-Dataset", page=True)
        for path in ("images", "LevirCCcaptions.json")
    )

    def annotations(self, split: Split) -> list[list[str]]:
        return [["LevirCCcaptions.json", "levir_cc_captions.json"]]

    def expected(self, split: Split) -> Counts:
        return Counts(PAIRS[split], 5 * PAIRS[split], 0, 0)

    def read(self, split: Split) -> list[PairRecord]:
        path = self.file(*self.annotations(split)[0])
        value = read_json(path, dict)
        listed = listed_images(path, value["images"]) if "images" in value else _plain(path, value)
        records = []
        for where, name, record_split, texts in listed:
            check_split(record_split, where)
            if record_split == split:
                before, after = (self.files.file(f"images/{record_split}/{side}/{name}", where) for side in "AB")
                is_unchanged = bool(texts) and UNCHANGED.issuperset(texts)
                change_type = NO_CHANGE if is_unchanged else CHANGE
                records.append(PairRecord(name, where, before, after, texts, change_type=change_type))
        return records


class LEVIRMCI(LEVIRCC):
    """LEVIR-MCI: the pairs and sentences of LEVIR-CC with masks of changed roads and buildings.

    ``masks`` of a pair are the pixels of either class, the same ones on both sides.

    Features: satellite images of one location, years apart; five sentences and a mask of changes per pair.
    Format: PNG and JSON.
    Splits: 6,815 train, 1,333 val and 1,929 test pairs.
    Licence: academic use.
    Cite: Liu, Chen, Zhang, Qi, Zou, Shi: Change-Agent (TGRS 2024), https://github.com/Chen-Yang-Liu/Change-Agent

    Args:
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = LEVIRMCI.split("data/levir_mci", "test")[0]
        >>> pair.masks.shape[0]
        2
    """

    folder = "levir_mci"
    title = "LEVIR-MCI"
    tree = f"{LEVIRCC.tree}\nimages/train/label/train_000001.png  0: unchanged, else a changed road or building"
    steps = (
        "fetch LEVIR-MCI-dataset.zip of the Hugging Face dataset lcybuaa/LEVIR-MCI (academic use), unpack it, and give "
        "the folder with images as root."
    )
    remotes = (Remote("images", "https://huggingface.co/datasets/lcybuaa/LEVIR-MCI", page=True),)

    def source_of(self, records: Sequence[PairRecord]) -> MaskedSource:
        plain = super().source_of(records)
        return MaskedSource(plain, lambda before: [before.parents[1] / "label" / before.name])


Listed = list[tuple[str, str, str, list[str]]]
"""Origin, file name, split and sentences of each pair."""


def listed_images(path: Path, images: Any, split: Split | None = None) -> Listed:
    """Entries of a list of images in Karpathy's format, which captions of satellite images share.

    Args:
        path: file of the list, for messages.
        images: objects with filename, split and sentences.
        split: split of all entries; that of each entry when None.

    Raises:
        DataError: an entry has another format.
    """
    if not isinstance(images, list):
        raise DataError(f"{path}: images is {short(images)}; expected a list")
    listed: Listed = []
    for number, image in enumerate(images, 1):
        where = f"{path}, image {number}"
        if not isinstance(image, dict) or not isinstance(image.get("sentences"), list):
            raise DataError(f"{where}: expected an object with filename, split and sentences; found {short(image)}")
        row = AnnotationRow(where, image)
        raw = [part.get("raw", part.get("tokens")) if isinstance(part, dict) else part for part in image["sentences"]]
        # sentences in the release end with " .", which the scoring protocols of this family remove
        texts = [text.removesuffix(".").rstrip() for text in sentences(raw, where)]
        listed.append((where, required_text(row, "filename"), split or required_text(row, "split"), texts))
    return listed


def _plain(path: Path, table: dict[str, Any]) -> Listed:
    listed: Listed = []
    for name, texts in table.items():
        where = f"{path}, {name}"
        listed.append((where, name, name.partition("_")[0], sentences(texts, where)))
    return listed
