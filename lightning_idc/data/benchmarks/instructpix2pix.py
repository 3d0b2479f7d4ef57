"""InstructPix2Pix: generated images and their edits by generated instructions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from lightning_idc.data.annotations import sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import FileSource, PairRecord, Root
from lightning_idc.images.types import PairSample
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import parse_json, read_json, read_text, short

Seeds = Literal["first", "all"]
PROMPTS = 313_010
"""Number of folders of the clip-filtered release."""
SHARES = (0.9, 0.95)
"""Relative boundaries between train, val and test in the list of folders, as in the reference loader."""
PROMPT = "prompt.json"
"""File with the instruction of a folder."""
_NUM_CHECKED = 32


class InstructPix2Pix(Benchmark):
    """InstructPix2Pix, clip-filtered: 313,010 instructions, each with one to four generated pairs.

    The position of a folder in ``seeds.json`` determines its split (90, 5 and 5 %), as in the reference loader, which
    then samples one of its seeds. Ids are ``FOLDER/SEED``. Because of the size of the data set, instructions are read
    on access, and only a sample of the images is checked at the start.

    Features: generated images and their edits; one instruction per folder.
    Format: JPEG and JSON.
    Splits: 281,709 train, 15,650 val and 15,651 test folders.
    Licence: not stated.
    Cite: Brooks, Holynski, Efros: InstructPix2Pix (CVPR 2023), https://github.com/timothybrooks/instruct-pix2pix

    Args:
        seeds: pairs per instruction: the first one, or all.
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = InstructPix2Pix.split("data/instructpix2pix", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "instructpix2pix"
    title = "InstructPix2Pix"
    tree = """
seeds.json                           [["0000132", ["127380018", "1818564940"]], ...]
0000132/prompt.json                  {"edit": "Make it look like a painting", ...}
0000132/127380018_0.jpg              before
0000132/127380018_1.jpg              after"""
    steps = (
        "download clip-filtered-dataset by hand (about 430 GB; see the README of the repository "
        "timothybrooks/instruct-pix2pix) and unpack all shards below one folder, or use the Hugging Face table: "
        "`hf_table` with path timbrooks/instructpix2pix-clip-filtered, before original_image, after edited_image, "
        "captions edit_prompt."
    )
    remotes = (Remote("seeds.json", "https://github.com/timothybrooks/instruct-pix2pix", page=True),)

    def __init__(self, root: str | Path | None = None, seeds: Seeds = "first", **options: Any) -> None:
        check_arguments(InstructPix2Pix.__init__, locals())
        super().__init__(root, **options)
        self.seeds: Seeds = seeds
        self._listed: list[tuple[str, list[str]]] | None = None

    def annotations(self, split: Split) -> list[list[str]]:
        return [["seeds.json"]]

    def expected(self, split: Split) -> Counts:
        first, last = _bounds(PROMPTS, split)
        # the total number of seeds is not published
        return Counts(pairs=last - first if self.seeds == "first" else None, records=last - first)

    def counts(self, split: Split) -> Counts:
        first, last = _bounds(len(self._prompts()), split)
        return Counts(pairs=len(self.records(split)), records=last - first)

    def read(self, split: Split) -> list[PairRecord]:
        prompts = self._prompts()
        first, last = _bounds(len(prompts), split)
        records = []
        for folder, seeds in prompts[first:last]:
            for seed in seeds if self.seeds == "all" else seeds[:1]:
                name = f"{folder}/{seed}"
                before, after = (self.files.file(f"{name}_{side}.jpg", name) for side in (0, 1))
                records.append(PairRecord(name, f"{self.title} {name}", before, after))
        return records

    def source(self, split: Split) -> PromptSource:
        records = self.records(split)
        self.check_counts(split)
        checked = records[:: max(1, len(records) // _NUM_CHECKED)]
        absent = [path for record in checked for path in (record.before, record.after) if not path.is_file()]
        if absent and self.on_missing == "raise":
            raise self.images_error(split, set(absent))
        if self.on_missing == "skip":
            records = self.with_existing_files(split, records, PROMPT)
        return PromptSource(records, self.files, self.image_size, self.interpolation, self.image_options)

    def _prompts(self) -> list[tuple[str, list[str]]]:
        """Read the folders and their seeds, in the order of ``seeds.json``."""
        if self._listed is None:
            path = self.file("seeds.json")
            listed = []
            for number, entry in enumerate(read_json(path, list), 1):
                is_valid = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
                if not is_valid or not isinstance(entry[1], list) or not entry[1]:
                    raise DataError(f"{path}, entry {number}: expected [folder, [seeds]], found {short(entry)}")
                if not all(isinstance(seed, (str, int)) for seed in entry[1]):
                    raise DataError(f"{path}, entry {number}: the seeds are {short(entry[1])}; expected strings")
                listed.append((entry[0], [str(seed) for seed in entry[1]]))
            self._listed = listed
        return self._listed


class PromptSource(FileSource):
    """Pairs with the instruction in a file next to the images.

    Args:
        records: one record per pair, without captions.
        files: root of the folders.
        options: arguments of :class:`~lightning_idc.data.tables.files.FileSource`.
    """

    def __init__(self, records: Sequence[PairRecord], files: Root, *options: Any) -> None:
        super().__init__(records, *options)
        self._files = files

    def captions(self, index: int) -> list[str]:
        record = self.records[index]
        if not record.captions:
            path = self._files.file(f"{record.id.rpartition('/')[0]}/{PROMPT}", record.where)
            prompt = parse_json(read_text(path), str(path))
            if not isinstance(prompt, dict) or "edit" not in prompt:
                raise DataError(f"{path} is {short(prompt)}; expected an object with the key edit")
            record.captions = sentences(prompt["edit"], str(path))
        return record.captions

    def load(self, index: int) -> PairSample:
        self.captions(index)
        return super().load(index)


def _bounds(number: int, split: str) -> tuple[int, int]:
    """Return start and stop index of a split in the list of folders, rounded down as in the reference loader."""
    cuts = [0, *(math.floor(fraction * number) for fraction in SHARES), number]
    number_of_split = {"train": 0, "val": 1, "test": 2}["test" if split == "predict" else split]
    return cuts[number_of_split], cuts[number_of_split + 1]
