"""HuggingFaceSource: the pairs of one split of a table of Hugging Face `datasets`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from lightning_idc.data.annotations import sentences
from lightning_idc.data.benchmarks.hf_column import Column, file_below, paths_of, undecoded
from lightning_idc.data.benchmarks.preference_pairs import margin_of
from lightning_idc.data.benchmarks.preference_pairs import preference as meta_of_preference
from lightning_idc.data.source import PairSource, View
from lightning_idc.data.tables.files import file_state
from lightning_idc.data.tables.messages import is_conversation, last_text
from lightning_idc.data.tables.tables import missing_column
from lightning_idc.images.options import PLAIN, ImageOptions
from lightning_idc.images.read import read_pair
from lightning_idc.images.resize import Interpolation, resize
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import ConfigError, DataError
from lightning_idc.utils.files import digest, digest_of_all
from lightning_idc.utils.jsonfiles import short

_ROWS_AT_ONCE = 1000  # rows per batch when scanning a table


class HuggingFaceSource(PairSource):
    """Source of the pairs of one split; images are decoded on access.

    Args:
        table: a `datasets.Dataset`.
        where: name of the table, for messages.
        before: column of first images.
        after: column of second images.
        captions: column of texts, lists of texts or conversations.
        id: columns whose values, joined by "-", form the id of a pair; () for the row number.
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
                raise ConfigError(missing_column(table.column_names, name, Path(where), "set by an argument"))
        table = undecoded(table, images)
        self.where, self.size, self.interpolation, self._folder = where, size, interpolation, folder
        self.options = options
        self._images = table.select_columns(images)
        texts = table.select_columns(list(dict.fromkeys(column.name for column in columns.values())))
        values_of = {name: column.values(texts) for name, column in columns.items()}
        self._captions: list[list[str]] = [[] for _ in range(len(table))]
        if captions:
            self._captions = [
                list(filter(None, sentences(_answer_of(text), self._row(row)))) if text is not None else []
                for row, text in enumerate(values_of[captions])
            ]
        self._meta = self._preferences(values_of, preference_columns, len(table))
        labels = values_of[change_type] if change_type else [None] * len(table)
        self._kinds = [None if kind is None else str(kind) for kind in labels]
        id_values = [values_of[column] for column in id]
        for column, values in zip(id, id_values, strict=True):
            if None in values:
                raise DataError(
                    f"{self._row(values.index(None))}: {column} is null; expected a value for the id of the pair"
                )
        joined = ("-".join(map(str, values)) for values in zip(*id_values, strict=True))
        self.ids = list(joined) if id else self._row_ids(len(table))

    def _preferences(
        self, values_of: Mapping[str, list[Any]], column_of: Mapping[str, str], count: int
    ) -> list[dict[str, Any]]:
        if not column_of:
            return [{} for _ in range(count)]
        columns = {key: values_of[column] for key, column in column_of.items()}
        missing: list[Any] = [None] * count
        rows = zip(*(columns.get(key, missing) for key in ("rejected", "margin", "error_type")), strict=True)
        return [
            meta_of_preference(
                [] if texts is None else list(filter(None, sentences(_answer_of(texts), self._row(row)))),
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
        states = [f"\0{row}\0{file_state(path, where)}" for row, path, where in self._named_files()]
        files = f"/{digest_of_all(states)}" if states else ""
        return f"{self._images._fingerprint}/{self.size}/{self.interpolation}{options}{files}"

    def _named_files(self) -> Iterator[tuple[int, Path, str]]:
        """Yield row, path and location of the images that are stored as paths; embedded images are not read."""
        if self._folder is None:
            return
        row = 0
        for part in self._images.with_format("arrow").iter(_ROWS_AT_ONCE):
            for column in self._columns:
                for number, path in enumerate(paths_of(column.cells(part[column.name])), row):
                    if path is not None:
                        where = f"{self._row(number)}, {column}"
                        yield number, file_below(self._folder, path, where), where
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
        """Return the path or the contents of an image."""
        data, path = (value.get("bytes"), value.get("path")) if isinstance(value, dict) else (value, value)
        if isinstance(data, bytes):
            return data
        if isinstance(path, str) and self._folder is not None:
            return file_below(self._folder, path, where)
        raise DataError(
            f"{where} is {short(value)}; expected an image, its bytes, or its path below a local table"
            + (
                f"; for the first of a list of images, set {where.rpartition(', ')[2]}.0"
                if isinstance(value, list)
                else ""
            )
        )


def _answer_of(value: Any) -> Any:
    """Text of the last message of a conversation; any other value unchanged."""
    return last_text(value) if is_conversation(value) else value


class Captioned(View):
    """View of the pairs that have a caption."""

    def __init__(self, source: PairSource) -> None:
        super().__init__(source, [index for index in range(len(source)) if source.captions(index)])

    def fingerprint(self) -> str | None:
        fingerprint = self.source.fingerprint()
        return fingerprint and f"{fingerprint}/{digest(str(self.indices))}"
