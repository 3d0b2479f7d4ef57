"""DiffSpot and HQ-Edit: published parquet tables of pairs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np

from lightning_idc.data.benchmarks.hf_loading import load_tables
from lightning_idc.data.benchmarks.hf_source import Captioned, HuggingFaceSource
from lightning_idc.data.benchmarks.hf_table import HuggingFaceTable
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.source import PairSource, View
from lightning_idc.data.splits import Split
from lightning_idc.metrics.no_change import CHANGE, NO_CHANGE
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import ConfigError, DataError, DatasetNotFoundError
from lightning_idc.utils.jsonfiles import short

Difficulty = Literal["all", "easy", "medium", "hard", "no_diff"]
MIXED = "mixed"


class DiffSpot(PairDataModule):
    """DiffSpot: screenshots of web pages before and after changes of single CSS properties; test pairs only.

    Unchanged pairs are included, without a reference and with the type ``no_change``: correct rejection is half of this
    benchmark. ``meta`` holds ``difficulty``, ``domain`` and ``mutations``, the exact record of the changes. The type of
    a pair is that of its mutation, ``mixed`` for several mutations, or ``change`` if none is recorded.

    Features: screenshots; the recorded mutations; one sentence per changed pair.
    Format: parquet with the columns id, image_before, image_after, ground_truth_diff, mutation_dicts_json, task_type,
        difficulty and domain.
    Splits: 3,900 changed and 500 unchanged test pairs.
    Licence: MIT.
    Cite: DiffSpot: Can VLMs Spot Fine-Grained Visual Differences in Web Interfaces? (2026),
        https://github.com/Tencent/DiffSpot

    Args:
        root: folder of the parquet files of the Hugging Face dataset tencent/DiffSpot, downloaded by hand.
        difficulty: difficulty of the pairs; ``no_diff`` selects unchanged pairs.
        options: arguments of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Example:
        >>> pair = DiffSpot("data/diffspot").dataset("test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    domain = "screenshots of web pages (DiffSpot)"
    available_splits = ("test",)

    def __init__(self, root: str | Path = "data/diffspot", difficulty: Difficulty = "all", **options: Any) -> None:
        check_arguments(DiffSpot.__init__, locals())
        super().__init__(**options)
        self.root, self.difficulty = Path(root).expanduser(), difficulty

    def source(self, split: Split) -> PairSource:
        if split not in (*self.available_splits, "predict"):
            raise ConfigError(f"DiffSpot has no split {split!r}; it has test pairs only")
        if not self.root.exists():
            raise DatasetNotFoundError(
                f"no such folder: {str(self.root)!r}; download the parquet files of the Hugging Face dataset "
                "tencent/DiffSpot by hand and set root to their folder"
            )
        import datasets

        tables = load_tables(str(self.root))
        rows = datasets.concatenate_datasets(list(tables.values()))  # the release has one split of any name
        resizing: dict[str, Any] = {"size": self.image_size, "interpolation": self.interpolation}
        source = MutationSource(rows, str(self.root), options=self.image_options, **resizing)
        if self.difficulty == "all":
            return source
        return View(
            source, [index for index in range(len(source)) if source.meta(index)["difficulty"] == self.difficulty]
        )

    def may_be_uncaptioned(self, split: Split, change_type: str | None) -> bool:
        return change_type == NO_CHANGE


class MutationSource(HuggingFaceSource):
    """Pairs of DiffSpot's table with their mutations.

    Args:
        table: a `datasets.Dataset`.
        where: name of the table, for messages.
        options: arguments of :class:`~lightning_idc.data.benchmarks.hf_source.HuggingFaceSource`.

    Raises:
        DataError: a column is missing, or a mutation is malformed.
    """

    def __init__(self, table: Any, where: str, **options: Any) -> None:
        columns = ("image_before", "image_after", "ground_truth_diff", ("id",), "task_type")
        super().__init__(table, where, *columns, **options)
        self._mutations = [self._read(row, texts) for row, texts in enumerate(table["mutation_dicts_json"])]
        names = table.column_names
        self._domains = list(table["domain"]) if "domain" in names else [None] * len(table)
        self._levels = list(table["difficulty"]) if "difficulty" in names else [None] * len(table)

    def _read(self, row: int, texts: Any) -> list[dict[str, Any]]:
        try:
            mutations = [json.loads(text) for text in texts or []]
        except (TypeError, ValueError, RecursionError) as error:
            raise DataError(f"{self._row(row)}: mutation_dicts_json is {short(texts)} ({error})") from None
        if not all(isinstance(mutation, dict) for mutation in mutations):
            raise DataError(f"{self._row(row)}: mutation_dicts_json is {short(texts)}; expected objects as JSON")
        return mutations

    def _unchanged(self, index: int) -> bool:
        return self._kinds[index] == "no_diff"

    def change_type(self, index: int) -> str:
        if self._unchanged(index):
            return NO_CHANGE
        types = {str(mutation.get("type")) for mutation in self._mutations[index]}
        return types.pop() if len(types) == 1 else MIXED if types else CHANGE

    def meta(self, index: int) -> dict[str, Any]:
        level = "no_diff" if self._unchanged(index) else self._levels[index]
        return {"difficulty": level, "domain": self._domains[index], "mutations": self._mutations[index]}

    def load(self, index: int) -> Any:
        sample = super().load(index)
        sample.change_type, sample.meta = self.change_type(index), self.meta(index)
        return sample


class HQEdit(HuggingFaceTable):
    """HQ-Edit: generated images and their edits, each with an instruction and an inverse instruction.

    The release has one split, train; validation and test pairs are selected from it by index.

    Features: generated images; one instruction per pair.
    Format: parquet with two image columns and an instruction column; the column names are arguments.
    Splits: one in the release; here one of 20 pairs is for validation and another one for testing.
    Licence: CC-BY-NC-4.0.
    Cite: HQ-Edit: A High-Quality Dataset for Instruction-based Image Editing (2024),
        https://huggingface.co/datasets/UCSC-VLAA/HQ-Edit

    Args:
        path: folder of the parquet files of the Hugging Face dataset UCSC-VLAA/HQ-Edit, or its name.
        inverse: whether to swap the images and use the inverse instructions.
        before: column of first images.
        after: column of second images.
        captions: column of instructions.
        inverse_captions: column of inverse instructions.
        options: arguments of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Example:
        >>> pair = HQEdit("data/hq_edit").dataset("test")[0]
        >>> pair.before.shape[0], len(pair.captions) > 0
        (3, True)
    """

    domain = "edited images (HQ-Edit)"
    _SPLITS: Mapping[Split, str] = {"train": "train", "val": "train", "test": "train"}

    def __init__(
        self,
        path: str | Path = "data/hq_edit",
        inverse: bool = False,
        before: str = "input_image",
        after: str = "output_image",
        captions: str = "edit",
        inverse_captions: str = "inverse_edit",
        **options: Any,
    ) -> None:
        sides = (after, before, inverse_captions) if inverse else (before, after, captions)
        super().__init__(path, *sides, splits=self._SPLITS, **options)

    def source(self, split: Split) -> PairSource:
        # by index in the release, so that the splits are the same with and without ``inverse``
        release = super().source("predict")
        remainders = np.arange(len(release)) % 20
        is_in_split = remainders == 18 if split == "val" else remainders == 19 if split != "train" else remainders < 18
        part = View(release, np.flatnonzero(is_in_split).tolist())
        return part if split == "predict" else Captioned(part)
