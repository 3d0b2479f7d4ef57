"""HuggingFaceTable: any table of Hugging Face `datasets` with two images per row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.data.annotations import sentences
from lightning_idc.data.benchmarks.preference_pairs import margin_of
from lightning_idc.data.benchmarks.preference_pairs import preference as meta_of_preference
from lightning_idc.data.datamodule import SPLITS as ALL_SPLITS
from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.data.source import PairSource, View
from lightning_idc.data.tables.files import state_of
from lightning_idc.data.tables.messages import is_conversation, last_text
from lightning_idc.data.tables.tables import missing_column
from lightning_idc.images.options import PLAIN, ImageOptions
from lightning_idc.images.read import read_pair
from lightning_idc.images.resize import Interpolation, resize
from lightning_idc.images.types import PairSample
from lightning_idc.utils.bounds import check_arguments
from lightning_idc.utils.errors import ConfigError, DataError, IDCError
from lightning_idc.utils.files import digest, digest_of_all
from lightning_idc.utils.jsonfiles import short
from lightning_idc.utils.paths import inside

SPLITS: Mapping[Split, str] = {"train": "train", "val": "validation", "test": "test"}
_BUILDERS = {
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".jsonl": "json",
    ".json": "json",
    ".csv": "csv",
    ".tar": "webdataset",
}

_ROWS = 1000  # rows per batch when scanning a table


@dataclass(frozen=True)
class Column:
    """Column of a table, or one element of a column of lists, or one field of a column of dictionaries.

    Args:
        name: name of the column.
        key: position in each list, or name of the field; None for the column itself.
    """

    name: str
    key: int | str | None = None

    @classmethod
    def of(cls, name: str, features: Mapping[str, Any]) -> Column:
        """Parse a name such as ``image``, ``images.0`` or ``pair.before``; a column of the full name takes precedence.

        Args:
            name: name of the column.
            features: type of each column of the table.
        """
        column, _, key = name.rpartition(".")
        if name in features or column not in features:
            return cls(name)
        if key.isascii() and key.isdecimal():
            return cls(column, int(key))
        feature = features[column]
        return cls(column, key) if isinstance(feature, dict) and key in feature else cls(name)

    def __str__(self) -> str:
        return self.name if self.key is None else f"{self.name}.{self.key}"

    def cell(self, row: Mapping[str, Any]) -> Any:
        """Value of a row; None if its list is too short or its dictionary is missing."""
        value = row[self.name]
        if self.key is None:
            return value
        if isinstance(self.key, str):
            return value.get(self.key) if isinstance(value, dict) else None
        return value[self.key] if isinstance(value, list) and len(value) > self.key else None

    def values(self, table: Any) -> list[Any]:
        """Values of all rows of a `datasets.Dataset`."""
        return [self.cell({self.name: value}) for value in table[self.name]]

    def cells(self, column: Any) -> Any:
        """Values of an Arrow array."""
        import pyarrow
        import pyarrow.compute as pc

        if self.key is None:
            return column
        if isinstance(self.key, str):
            return pc.struct_field(column, self.key)
        lists = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
        if not hasattr(lists.type, "value_type"):
            return pyarrow.nulls(len(lists))  # not a list column; loading a pair reports this
        lists = lists.cast(pyarrow.large_list(lists.type.value_type))
        positions = pc.add(lists.offsets[:-1], self.key)
        has_image = pc.fill_null(pc.greater(pc.list_value_length(lists), self.key), False)
        return lists.values.take(pc.if_else(has_image, positions, None))


class TableSource(PairSource):
    """Pairs of one split of a table; images are decoded on access.

    Args:
        table: a `datasets.Dataset`.
        where: name of the table, for messages.
        before: column of first images.
        after: column of second images.
        captions: column of texts or lists of texts.
        id: columns of which the values, joined by "-", are the id of a pair; () for the row number.
        change_type: column of labels.
        size: height and width of the resized images; None keeps the original sizes.
        interpolation: interpolation for resizing.
        folder: base folder of paths in image columns; None rejects paths.
        preference: columns of rejected captions, margins and types of error, by the keys ``rejected``, ``margin`` and
            ``error_type``; the values are stored in ``meta``.
        options: decoding options: value range, bands, page.

    Raises:
        ConfigError: a column is missing, or is used for both images.
        DataError: a column has invalid values.
    """

    def __init__(
        self,
        table: Any,
        where: str,
        before: str,
        after: str,
        captions: str | None,
        id: Sequence[str] = (),
        change_type: str | None = None,
        size: tuple[int, int] | None = None,
        interpolation: Interpolation = "bilinear",
        folder: Path | None = None,
        options: ImageOptions = PLAIN,
        preference: Mapping[str, str] | None = None,
    ) -> None:
        preference_columns = dict(preference or {})
        self._columns = tuple(Column.of(name, table.features) for name in (before, after))
        if self._columns[0] == self._columns[1]:
            raise ConfigError(
                f"before and after are both {before!r}; expected two columns, or NAME.0 and NAME.1 of one list"
            )
        images = list(dict.fromkeys(column.name for column in self._columns))
        names = [name for name in (captions, *id, change_type, *preference_columns.values()) if name]
        columns = {name: Column.of(name, table.features) for name in names}
        for name in (*images, *(column.name for column in columns.values())):
            if name not in table.column_names:
                raise ConfigError(missing_column(table.column_names, name, Path(where), "named in the settings"))
        table = _undecoded(table, images)
        self.where, self.size, self.interpolation, self._folder = where, size, interpolation, folder
        self.options = options
        self._images = table.select_columns(images)
        texts = table.select_columns(list(dict.fromkeys(column.name for column in columns.values())))
        values_of = {name: column.values(texts) for name, column in columns.items()}
        self._captions: list[list[str]] = [[] for _ in range(len(table))]
        if captions:
            self._captions = [
                list(filter(None, sentences(answer_of(text), self._row(row)))) if text is not None else []
                for row, text in enumerate(values_of[captions])
            ]
        self._meta = self._preferences(values_of, preference_columns, len(table))
        kinds = values_of[change_type] if change_type else [None] * len(table)
        self._kinds = [None if kind is None else str(kind) for kind in kinds]
        id_values = [values_of[column] for column in id]
        for column, values in zip(id, id_values, strict=True):
            if None in values:
                raise DataError(f"{self._row(values.index(None))}: {column} is null; the ids of pairs need a value")
        joined = ("-".join(map(str, values)) for values in zip(*id_values, strict=True))
        self.ids = list(joined) if id else self._row_ids(len(table))

    def _preferences(
        self, values_of: Mapping[str, list[Any]], column_of: Mapping[str, str], count: int
    ) -> list[dict[str, Any]]:
        if not column_of:
            return [{} for _ in range(count)]
        columns = {key: values_of[column] for key, column in column_of.items()}
        nothing: list[Any] = [None] * count
        rows = zip(*(columns.get(key, nothing) for key in ("rejected", "margin", "error_type")), strict=True)
        return [
            meta_of_preference(
                [] if texts is None else list(filter(None, sentences(answer_of(texts), self._row(row)))),
                margin_of(margin, self._row(row)),
                None if kind is None else str(kind),
            )
            for row, (texts, margin, kind) in enumerate(rows)
        ]

    def meta(self, index: int) -> dict[str, Any]:
        return self._meta[index]

    @staticmethod
    def _row_ids(count: int) -> list[str]:
        return [f"{index:06d}" for index in range(count)]

    def _row(self, index: int) -> str:
        return f"{self.where}, row {index}"

    def captions(self, index: int) -> list[str]:
        return self._captions[index]

    def change_type(self, index: int) -> str | None:
        return self._kinds[index]

    def fingerprint(self) -> str:
        # the fingerprint of `datasets` covers the table files and all operations on them, but not image files that
        # the table refers to; only the image columns are included
        options = "" if self.options == PLAIN else f"/{self.options.to_dict()}"
        states = [f"\0{row}\0{state_of(path, where)}" for row, path, where in self._named_files()]
        files = f"/{digest_of_all(states)}" if states else ""
        return f"{self._images._fingerprint}/{self.size}/{self.interpolation}{options}{files}"

    def _named_files(self) -> Iterator[tuple[int, Path, str]]:
        """Row, path and location of the images that are stored as paths; embedded images are not read."""
        if self._folder is None:
            return
        row = 0
        for part in self._images.with_format("arrow").iter(_ROWS):
            for column in self._columns:
                for number, path in enumerate(_paths(column.cells(part[column.name])), row):
                    if path is not None:
                        where = f"{self._row(number)}, {column}"
                        yield number, _below(self._folder, path, where), where
            row += len(part)

    def original(self, index: int) -> tuple[Tensor, Tensor]:
        row = self._images[index]
        files = [self._file(column.cell(row), f"{self._row(index)}, {column}") for column in self._columns]
        return read_pair(files[0], files[1], self.options, self._row(index))

    def load(self, index: int) -> PairSample:
        before, after = self.original(index)
        if self.size is not None:
            before, after = (resize(image, self.size, self.interpolation) for image in (before, after))
        captions, kind = list(self._captions[index]), self._kinds[index]
        return PairSample(self.ids[index], before, after, captions, kind, meta=self._meta[index])

    def _file(self, value: Any, where: str) -> Path | bytes:
        """Path or contents of an image."""
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, value)
        if isinstance(data, bytes):
            return data
        if isinstance(path, str) and self._folder is not None:
            return _below(self._folder, path, where)
        raise DataError(
            f"{where} is {short(value)}; expected an image, its bytes, or its path below a local table"
            + (f"; a list of images is named {where.rpartition(', ')[2]}.0" if isinstance(value, list) else "")
        )


def answer_of(value: Any) -> Any:
    """Text of the last message of a conversation; any other value unchanged."""
    return last_text(value) if is_conversation(value) else value


def _undecoded(table: Any, columns: Sequence[str]) -> Any:
    """Table with undecoded images: bytes and paths."""
    import datasets

    for name in columns:
        feature = table.features[name]
        raw = datasets.Image(decode=False)
        if isinstance(feature, datasets.Image):
            table = table.cast_column(name, raw)
        elif isinstance(getattr(feature, "feature", None), datasets.Image):
            table = table.cast_column(name, datasets.List(raw))
        elif isinstance(feature, dict):
            fields = {key: raw if isinstance(kind, datasets.Image) else kind for key, kind in feature.items()}
            table = table.cast_column(name, fields)
    return table


def _below(folder: Path, path: str, where: str) -> Path:
    """File below the folder of a table, from a relative or an absolute path."""
    base = folder.resolve()
    relative = path[len(str(base)) + 1 :] if path.startswith(f"{base}/") else path
    return inside(base, relative, where)


def _paths(cells: Any) -> list[str | None]:
    """Paths in an Arrow column of images; None for a cell with an embedded image or null."""
    import pyarrow
    import pyarrow.compute as pc

    kind = cells.type
    if pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind):
        return cells.to_pylist()  # type: ignore[no-any-return]
    fields = [kind.field(index).name for index in range(kind.num_fields)] if pyarrow.types.is_struct(kind) else []
    if "path" not in fields:
        return [None] * len(cells)
    paths = pc.struct_field(cells, "path")
    if "bytes" in fields:
        paths = pc.if_else(pc.is_null(pc.struct_field(cells, "bytes")), paths, None)
    return paths.to_pylist()  # type: ignore[no-any-return]


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
        id: columns of which the values together are the id of a pair; empty for the row number in the split.
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
        splits: Mapping[Split, str] = SPLITS,
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
        self.labelled = tuple(split for split in ALL_SPLITS if split in splits)
        self._tables: Any = None

    def source(self, split: Split) -> PairSource:
        name = self.splits.get(split) or (self.splits.get("test") if split == "predict" else None)
        tables = self._load()
        if name not in tables:
            missing = f"{self.path} has no split {name!r} for" if name else f"{self.path}: splits names none for"
            raise ConfigError(
                f"{missing} {split!r}; found {', '.join(map(repr, tables))}. Say which with splits: {{train: ..., "
                "val: ..., test: ...}"
            )
        local = Path(self.path).expanduser()
        folder = (local if local.is_dir() else local.parent) if local.exists() else None
        where = f"{self.path} ({name})"
        source = TableSource(
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

    def ids_are_names(self) -> bool:
        return bool(self.id_columns)

    def _load(self) -> Any:
        """All splits of the table, by name."""
        if self._tables is None:
            text_columns = [self.columns["captions"], self.preference.get("rejected"), *self.id_columns]
            self._tables = load_tables(self.path, self.config, [column for column in text_columns if column])
        return self._tables


class Captioned(View):
    """View of the pairs that have a caption."""

    def __init__(self, source: PairSource) -> None:
        super().__init__(source, [index for index in range(len(source)) if source.captions(index)])

    def fingerprint(self) -> str | None:
        fingerprint = self.source.fingerprint()
        return fingerprint and f"{fingerprint}/{digest(str(self.indices))}"


def _check_no_addresses(folder: Path) -> None:
    """Check that the README of a folder has no URLs, as `datasets` requests them before it lists the files.

    Raises:
        DataError: the README contains a URL.
    """
    from huggingface_hub import DatasetCard

    if not (folder / "README.md").is_file():
        return
    values: list[Any] = [
        DatasetCard.load(folder / "README.md", ignore_metadata_errors=True).data.to_dict().get("configs")
    ]
    while values:
        value = values.pop()
        if isinstance(value, str) and "://" in value:
            raise DataError(f"the README of {str(folder)!r} names {value!r}; only files below the folder are read")
        if isinstance(value, (list, dict)):
            values.extend(value.values() if isinstance(value, dict) else value)


def _check_files_below(folder: Path, files: Mapping[str, Sequence[str]] | None) -> None:
    """Check that all files in the README of a folder are below the folder.

    Raises:
        DataError: a file is outside the folder.
    """
    base = folder.resolve()
    for name in (name for names in (files or {}).values() for name in names):
        if "://" in str(name) or not Path(str(name)).resolve().is_relative_to(base):
            raise DataError(f"the README of {str(folder)!r} names {str(name)!r}; only files below the folder are read")


def _text(field: str) -> str | None:
    return field or None


def load_tables(path: str, config: str | None = None, texts: Sequence[str] = ()) -> Any:
    """Load the tables of a path or a name on the hub, by split.

    `datasets` infers splits from file names such as ``train-00000.parquet`` or ``data/test/0.parquet``.

    Args:
        path: file, folder, or name on the hub.
        config: configuration name of a data set on the hub that has several.
        texts: text columns of a local CSV, which are not converted to numbers.

    Raises:
        ConfigError: the package datasets is missing, or the file has an unknown extension.
        DataError: the table cannot be loaded.
    """
    try:
        import datasets
        from datasets.packaged_modules.csv.csv import CsvConfig
    except ImportError as error:
        raise ConfigError("tables of Hugging Face need the package datasets: pip install datasets") from error
    local = Path(path).expanduser()
    # pandas would read texts such as "None" and "NA" as missing, and ids such as 007 as numbers
    plain = {"keep_default_na": False, "na_values": [""], "converters": dict.fromkeys(texts, _text)}
    try:
        if local.is_file():
            if local.suffix not in _BUILDERS:
                raise ConfigError(f"{path} is not a table; expected one of {', '.join(_BUILDERS)}")
            builder = _BUILDERS[local.suffix]
            return datasets.load_dataset(builder, data_files=str(local), **(plain if builder == "csv" else {}))
        if local.is_dir() and any((local / name).is_file() for name in ("dataset_info.json", "dataset_dict.json")):
            loaded = datasets.load_from_disk(str(local))
            return loaded if isinstance(loaded, datasets.DatasetDict) else {"train": loaded}
        if local.is_dir():
            _check_no_addresses(local)
            loaded = datasets.load_dataset_builder(str(local), config).config
            _check_files_below(local, loaded.data_files)
            return datasets.load_dataset(str(local), config, **(plain if isinstance(loaded, CsvConfig) else {}))
        return datasets.load_dataset(path, config)
    except IDCError:
        raise
    except Exception as error:  # datasets raises errors of half a dozen packages
        hint = "" if local.exists() else "; there is no such file or folder either"
        raise DataError(f"the table {path!r} cannot be loaded: {type(error).__name__}: {error}{hint}") from error
