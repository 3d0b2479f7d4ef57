"""HuggingFaceTable: data module of any table of Hugging Face `datasets` with two images per row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning_idc.data.benchmarks.hf_loading import load_tables
from lightning_idc.data.benchmarks.hf_source import Captioned, HuggingFaceSource
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.source import PairSource
from lightning_idc.data.splits import ANNOTATED_SPLITS, Split
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import ConfigError

HUB_SPLITS: Mapping[Split, str] = {"train": "train", "val": "validation", "test": "test"}


class HuggingFaceTable(PairDataModule):
    """Any table of Hugging Face `datasets` with two images per row, on disk or on the hub.

    Empty captions are left out, and so are pairs without captions.

    Args:
        path: a file or folder of tables (parquet, arrow, JSON, CSV, one tar of WebDataset), a folder written by
            ``save_to_disk``, or a name on the hub.
        before: column of first images, ``images.0`` for the first element of a column of lists, or ``pair.before`` for
            a field of a column of dictionaries.
        after: column of second images.
        captions: column of texts, of lists of texts, or of conversations, of which the last message counts; or a field
            such as ``json.caption`` of WebDataset.
        id: columns whose values together form the id of a pair; empty for the row number in the split.
        change_type: column of labels.
        config: configuration name of a data set on the hub that has several.
        splits: name of each split in the table; splits without a name do not exist.
        rejected: column of rejected captions, in the forms of ``captions``, which then has the chosen ones.
        margin: column of preference margins.
        error_type: column of error types of the rejected captions.
        options: arguments of :class:`~lightning_idc.data.datamodule.PairDataModule`.

    Example:
        >>> data = HuggingFaceTable("pairs/train.jsonl", "before", "after", "caption")
        >>> data.dataset("train")[0].captions
        ['it moved']
    """

    def __init__(
        self,
        path: str | Path,
        before: str,
        after: str,
        captions: str,
        id: Sequence[str] = (),
        change_type: str | None = None,
        config: str | None = None,
        splits: Mapping[Split, str] = HUB_SPLITS,
        rejected: str | None = None,
        margin: str | None = None,
        error_type: str | None = None,
        **options: Any,
    ) -> None:
        check_arguments(HuggingFaceTable.__init__, locals())
        super().__init__(**options)
        self.path, self.config = str(path), config
        self.columns = {"before": before, "after": after, "captions": captions, "change_type": change_type}
        preference = {"rejected": rejected, "margin": margin, "error_type": error_type}
        self.preference = {key: column for key, column in preference.items() if column is not None}
        self.id_columns = [id] if isinstance(id, str) else list(id)
        self.splits = dict(splits)
        self.available_splits = tuple(split for split in ANNOTATED_SPLITS if split in splits)
        self._tables: Any = None

    def source(self, split: Split) -> PairSource:
        name = self.splits.get(split) or (self.splits.get("test") if split == "predict" else None)
        tables = self._load()
        if name not in tables:
            missing = f"{self.path} has no split {name!r} for" if name else f"{self.path}: splits has no name for"
            raise ConfigError(
                f"{missing} {split!r}; found {', '.join(map(repr, tables))}. Map them with splits: {{train: ..., "
                "val: ..., test: ...}"
            )
        local = Path(self.path).expanduser()
        folder = (local if local.is_dir() else local.parent) if local.exists() else None
        where = f"{self.path} ({name})"
        source = HuggingFaceSource(
            tables[name],
            where,
            id=self.id_columns,
            size=self.image_size,
            interpolation=self.interpolation,
            folder=folder,
            options=self.image_options,
            preference=self.preference,
            **self.columns,  # type: ignore[arg-type]
        )
        return Captioned(source) if split != "predict" else source

    def has_unique_ids(self) -> bool:
        return bool(self.id_columns)

    def _load(self) -> Any:
        """Load all splits of the table, by name."""
        if self._tables is None:
            text_columns = [self.columns["captions"], self.preference.get("rejected"), *self.id_columns]
            self._tables = load_tables(self.path, self.config, [column for column in text_columns if column])
        return self._tables
