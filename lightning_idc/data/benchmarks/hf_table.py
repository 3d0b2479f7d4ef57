"""HuggingFaceTable: any table of Hugging Face `datasets` with two images a row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.data.annotations import sentences
from lightning_idc.data.benchmarks.preference_pairs import margin_of
from lightning_idc.data.benchmarks.preference_pairs import preference as meta_of_preference
from lightning_idc.data.datamodule import SPLITS as ALL_SPLITS
from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.data.source import PairSource, View
from lightning_idc.data.tables.files import state_of
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

_ROWS = 1000  # of a table that are looked at in one go


@dataclass(frozen=True)
class ImageColumn:
    """A column of images, or one index of a column of lists of images.

    Args:
        name: column.
        index: position in each list; None if the column holds single images.
    """

    name: str
    index: int | None = None

    @classmethod
    def of(cls, name: str, columns: Sequence[str]) -> ImageColumn:
        """Column of a name such as ``image`` or ``images.0``; a column that has the name with its dot comes first."""
        column, _, index = name.rpartition(".")
        is_index = name not in columns and column in columns and index.isascii() and index.isdecimal()
        return cls(column, int(index)) if is_index else cls(name)

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}.{self.index}"

    def cell(self, row: Mapping[str, Any]) -> Any:
        """The image of a row; None if its list is too short."""
        value = row[self.name]
        if self.index is None:
            return value
        return value[self.index] if isinstance(value, list) and len(value) > self.index else None

    def cells(self, column: Any) -> Any:
        """The images of an Arrow array."""
        import pyarrow
        import pyarrow.compute as pc

        if self.index is None:
            return column
        lists = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
        if not hasattr(lists.type, "value_type"):
            return pyarrow.nulls(len(lists))  # no lists, which reading a pair reports
        lists = lists.cast(pyarrow.large_list(lists.type.value_type))
        positions = pc.add(lists.offsets[:-1], self.index)
        has_image = pc.fill_null(pc.greater(pc.list_value_length(lists), self.index), False)
        return lists.values.take(pc.if_else(has_image, positions, None))


class TableSource(PairSource):
    """Pairs of one split of a table; images are decoded when they are asked for.

    Args:
        table: a `datasets.Dataset`.
        where: what the table is, for messages.
        before: column of images.
        after: column of images.
        captions: column of texts or lists of texts.
        id: columns whose values, joined by "-", name a pair; () for its place.
        change_type: column of labels.
        size: height and width of the images; None leaves them.
        interpolation: how images are scaled.
        folder: that paths in image columns are relative to; None refuses paths.
        preference: columns of rejected captions, margins and types of error, by ``rejected``, ``margin``,
            ``error_type``; they come into ``meta``.
        options: value range, bands and page of the images.

    Raises:
        ConfigError: a column is missing, or named for both images.
        DataError: a column does not hold what it should.
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
        named_by = dict(preference or {})
        self._columns = tuple(ImageColumn.of(name, table.column_names) for name in (before, after))
        if self._columns[0] == self._columns[1]:
            raise ConfigError(
                f"before and after are both {before!r}; expected two columns, or NAME.0 and NAME.1 of one list"
            )
        images = list(dict.fromkeys(column.name for column in self._columns))
        texts_of = [name for name in (captions, *id, change_type, *named_by.values()) if name]
        for name in (*images, *texts_of):
            if name not in table.column_names:
                raise ConfigError(missing_column(table.column_names, name, Path(where), "named in the settings"))
        table = _undecoded(table, images)
        self.where, self.size, self.interpolation, self._folder = where, size, interpolation, folder
        self.options = options
        self._images = table.select_columns(images)
        texts = table.select_columns(list(dict.fromkeys(texts_of)))
        self._captions: list[list[str]] = [[] for _ in range(len(table))]
        if captions:
            values_of_rows = list(texts[captions])
            self._captions = [
                list(filter(None, sentences(text, self._row(row)))) if text is not None else []
                for row, text in enumerate(values_of_rows)
            ]
        self._meta = self._preferences(texts, named_by, len(table))
        kinds = list(texts[change_type]) if change_type else [None] * len(table)
        self._kinds = [None if kind is None else str(kind) for kind in kinds]
        named = [list(texts[column]) for column in id]
        for column, values in zip(id, named, strict=True):
            if None in values:
                raise DataError(f"{self._row(values.index(None))}: {column} is null; the ids of pairs need a value")
        self.ids = ["-".join(map(str, parts)) for parts in zip(*named, strict=True)] if id else self._places(len(table))

    def _preferences(self, texts: Any, named: Mapping[str, str], count: int) -> list[dict[str, Any]]:
        if not named:
            return [{} for _ in range(count)]
        columns = {what: list(texts[column]) for what, column in named.items()}
        nothing: list[Any] = [None] * count
        rows = zip(*(columns.get(what, nothing) for what in ("rejected", "margin", "error_type")), strict=True)
        return [
            meta_of_preference(
                [] if texts is None else list(filter(None, sentences(texts, self._row(row)))),
                margin_of(margin, self._row(row)),
                None if kind is None else str(kind),
            )
            for row, (texts, margin, kind) in enumerate(rows)
        ]

    def meta(self, index: int) -> dict[str, Any]:
        return self._meta[index]

    @staticmethod
    def _places(count: int) -> list[str]:
        return [f"{index:06d}" for index in range(count)]

    def _row(self, index: int) -> str:
        return f"{self.where}, row {index}"

    def captions(self, index: int) -> list[str]:
        return self._captions[index]

    def change_type(self, index: int) -> str | None:
        return self._kinds[index]

    def fingerprint(self) -> str:
        # of the columns of images alone, which `datasets` derives from its files and everything done to them, but not
        # from the images that the files name
        how = "" if self.options == PLAIN else f"/{self.options.to_dict()}"
        named = [f"\0{row}\0{state_of(path, where)}" for row, path, where in self._named_files()]
        files = f"/{digest_of_all(named)}" if named else ""
        return f"{self._images._fingerprint}/{self.size}/{self.interpolation}{how}{files}"

    def _named_files(self) -> Iterator[tuple[int, Path, str]]:
        """Row, path and place of the images that the table names and does not hold, without reading those it holds."""
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

    def load(self, index: int) -> PairSample:
        row = self._images[index]
        files = [self._file(column.cell(row), f"{self._row(index)}, {column}") for column in self._columns]
        before, after = read_pair(files[0], files[1], self.options, self._row(index))
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


def _undecoded(table: Any, columns: Sequence[str]) -> Any:
    """The table with its images as bytes and paths."""
    import datasets

    for name in columns:
        feature = table.features[name]
        raw = datasets.Image(decode=False)
        if isinstance(feature, datasets.Image):
            table = table.cast_column(name, raw)
        elif isinstance(getattr(feature, "feature", None), datasets.Image):
            table = table.cast_column(name, datasets.List(raw))
    return table


def _below(folder: Path, path: str, where: str) -> Path:
    """File below the folder of a table, named from there or from the root."""
    base = folder.resolve()
    relative = path[len(str(base)) + 1 :] if path.startswith(f"{base}/") else path
    return inside(base, relative, where)


def _paths(cells: Any) -> list[str | None]:
    """Paths in an Arrow column of images; None where a cell holds the image itself, or nothing."""
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
    """Any table of Hugging Face `datasets` with two images a row: on disk, or on the hub.

    Empty captions are left out; pairs without any are left out, too.

    Args:
        path: a file or folder of tables (parquet, arrow, JSON, CSV, one tar of WebDataset), a folder written by
            ``save_to_disk``, or a name on the hub.
        before: column of images, or ``images.0`` for the first of a column of lists.
        after: column of images.
        captions: column of texts or of lists of texts.
        id: columns whose values together name a pair; none for its place in the split.
        change_type: column of labels.
        config: of a data set on the hub that has several.
        splits: the table's name of each split; one that is left out does not exist.
        rejected: column of rejected captions, texts or lists of texts; ``captions`` then names the chosen ones.
        margin: column that says by how much the chosen caption is better.
        error_type: column with what is wrong with the rejected one.
        options: of :class:`~lightning_idc.data.datamodule.PairDataModule`.

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
        named = {"rejected": rejected, "margin": margin, "error_type": error_type}
        self.preference = {what: column for what, column in named.items() if column is not None}
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
        """All splits by name."""
        if self._tables is None:
            named = [self.columns["captions"], self.preference.get("rejected"), *self.id_columns]
            self._tables = load_tables(self.path, self.config, [column for column in named if column])
        return self._tables


class Captioned(View):
    """The pairs of another source that have a caption."""

    def __init__(self, source: PairSource) -> None:
        super().__init__(source, [index for index in range(len(source)) if source.captions(index)])

    def fingerprint(self) -> str | None:
        fingerprint = self.source.fingerprint()
        return fingerprint and f"{fingerprint}/{digest(str(self.indices))}"


def _refuse_addresses(folder: Path) -> None:
    """Refuse a README that names files on the network, which `datasets` asks for before it says which files it names.

    Raises:
        DataError: there is an address.
    """
    from huggingface_hub import DatasetCard

    if not (folder / "README.md").is_file():
        return
    named: list[Any] = [
        DatasetCard.load(folder / "README.md", ignore_metadata_errors=True).data.to_dict().get("configs")
    ]
    while named:
        value = named.pop()
        if isinstance(value, str) and "://" in value:
            raise DataError(f"the README of {str(folder)!r} names {value!r}; only files below the folder are read")
        if isinstance(value, (list, dict)):
            named.extend(value.values() if isinstance(value, dict) else value)


def _refuse_files_outside(folder: Path, files: Mapping[str, Sequence[str]] | None) -> None:
    """Refuse what the README of a folder names outside of it.

    Raises:
        DataError: there is such a file.
    """
    base = folder.resolve()
    for name in (name for names in (files or {}).values() for name in names):
        if "://" in str(name) or not Path(str(name)).resolve().is_relative_to(base):
            raise DataError(f"the README of {str(folder)!r} names {str(name)!r}; only files below the folder are read")


def _text(field: str) -> str | None:
    return field or None


def load_tables(path: str, config: str | None = None, texts: Sequence[str] = ()) -> Any:
    """Tables of a path or a name on the hub, by split.

    Files are told apart by their names as `datasets` does: ``train-00000.parquet``, ``data/test/0.parquet``.

    Args:
        path: of a file or folder, or a name on the hub.
        config: of a data set on the hub that has several.
        texts: columns of a local CSV that hold texts, also where these look like numbers.

    Raises:
        ConfigError: the package datasets is missing, or the file is not a table by its name.
        DataError: the table cannot be loaded.
    """
    try:
        import datasets
        from datasets.packaged_modules.csv.csv import CsvConfig
    except ImportError as error:
        raise ConfigError("tables of Hugging Face need the package datasets: pip install datasets") from error
    local = Path(path).expanduser()
    # pandas would take texts such as "None" and "NA" for nothing, and ids such as 007 for numbers
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
            _refuse_addresses(local)
            loaded = datasets.load_dataset_builder(str(local), config).config
            _refuse_files_outside(local, loaded.data_files)
            return datasets.load_dataset(str(local), config, **(plain if isinstance(loaded, CsvConfig) else {}))
        return datasets.load_dataset(path, config)
    except IDCError:
        raise
    except Exception as error:  # datasets raises errors of half a dozen packages
        hint = "" if local.exists() else "; there is no such file or folder either"
        raise DataError(f"the table {path!r} cannot be loaded: {type(error).__name__}: {error}{hint}") from error
