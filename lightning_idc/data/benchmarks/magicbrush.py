"""MagicBrush: photographs and their edits by a model with human-written instructions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_idc.data.annotations import find_file, required_text, sentences
from lightning_idc.data.benchmark import Benchmark, Counts, Remote
from lightning_idc.data.benchmarks.hf_loading import load_tables
from lightning_idc.data.benchmarks.hf_source import HuggingFaceSource
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import Split
from lightning_idc.data.tables.files import PairRecord
from lightning_idc.data.tables.tables import read_objects

TURNS = {"train": 8_807, "val": 528, "test": 1_053}
"""Number of edits per split."""
_FOLDERS = {"train": "train", "val": "dev", "test": "test"}
_AURORA = {"train": "data_magicbrush_train.json", "test": "test.json"}


class MagicBrush(Benchmark):
    """MagicBrush: 10,388 edits of photographs with their instructions; an edit may build on a previous one.

    Three layouts are supported: folders with ``edit_turns.json`` as in the release, the parquet tables on Hugging Face,
    and AURORA's copy, which has all training edits and 50 edits of the test split in ``test.json``. The id of a pair
    is the name of the edited image, or image and turn in tables.

    Features: photographs and their edits by a model, approved by people; one instruction per pair.
    Format: PNG and JSON, or parquet.
    Splits: 8,807 train, 528 val and 1,053 test pairs.
    Licence: CC-BY-4.0.
    Cite: Zhang, Mo, Chen, Sun, Su: MagicBrush (NeurIPS 2023), https://github.com/OSU-NLP-Group/MagicBrush

    Args:
        options: arguments of :class:`~lightning_idc.data.benchmark.Benchmark`.

    Example:
        >>> pair = MagicBrush.split("data/magicbrush", "test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    folder = "magicbrush"
    title = "MagicBrush"
    tree = """
train/edit_turns.json                        [{"input": "1-input.png", "output": "1-output1.png", "instruction"}, ...]
train/images/1/1-input.png, 1-output1.png    before and after; likewise dev and test
data/train-*.parquet, data/dev-*.parquet     instead: source_img, target_img, instruction, img_id, turn_index
data_magicbrush_train.json, test.json        instead: AURORA's lists, whose paths are relative to the root"""
    steps = (
        "download the Hugging Face dataset osunlp/MagicBrush; its test split is a password-protected archive, linked "
        "in the README of the repository OSU-NLP-Group/MagicBrush (by hand)."
    )
    remotes = (
        Remote("train", "https://huggingface.co/datasets/osunlp/MagicBrush", page=True),
        Remote("test", "https://github.com/OSU-NLP-Group/MagicBrush", page=True),
    )

    def annotations(self, split: Split) -> list[list[str]]:
        if self._tables(split):
            return []
        return [[f"{_FOLDERS[split]}/edit_turns.json", *([_AURORA[split]] if split in _AURORA else [])]]

    def expected(self, split: Split) -> Counts:
        return Counts(TURNS[split], TURNS[split], 0, 0)

    def counts(self, split: Split) -> Counts:
        if self._tables(split):
            table = self._table(split)
            texts = [text for index in range(len(table)) for text in table.captions(index)]
            return Counts(len(table), len(texts), 0, sum(not table.captions(index) for index in range(len(table))))
        return super().counts(split)

    def read(self, split: Split) -> list[PairRecord]:
        if self._tables(split):
            return []  # HuggingFaceSource reads the tables
        folder = _FOLDERS[split]
        turns = find_file(self.root, f"{folder}/edit_turns.json")
        rows = read_objects(turns or self.file(_AURORA[split]))
        records = []
        for row in rows:
            if row.values.get("task", "magicbrush") != "magicbrush":
                continue  # AURORA's test list includes seven other data sets
            sides = [required_text(row, side) for side in ("input", "output")]
            if turns is not None:
                sides = [f"{folder}/images/{side.partition('-')[0]}/{side}" for side in sides]
            before, after = (self.files.file(side, row.where) for side in sides)
            name = sides[1].rpartition("/")[2].rpartition(".")[0]
            records.append(
                PairRecord(name, row.where, before, after, sentences(required_text(row, "instruction"), row.where))
            )
        return records

    def source(self, split: Split) -> PairSource:
        name: Split = "test" if split == "predict" else split
        if not self._tables(name):
            return super().source(split)
        self.check_counts(split)
        return self._table(name)

    def _tables(self, split: Split) -> Sequence[str]:
        """List the parquet files of a split."""
        folder = self.root / "data"
        return sorted(map(str, folder.glob(f"{_FOLDERS[split]}-*.parquet"))) if folder.is_dir() else []

    def _table(self, split: Split) -> HuggingFaceSource:
        name = _FOLDERS[split]
        tables: Any = load_tables(str(self.root / "data"))
        columns = ("source_img", "target_img", "instruction", ("img_id", "turn_index"))
        where = f"{self.root}/data ({name})"
        table = tables["validation" if name == "dev" and name not in tables else name]
        return HuggingFaceSource(
            table, where, *columns, size=self.image_size, interpolation=self.interpolation, options=self.image_options
        )
