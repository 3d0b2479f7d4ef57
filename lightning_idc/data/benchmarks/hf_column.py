"""Column: a column of a table of Hugging Face `datasets`; its images are stored as bytes or as paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.utils.paths import inside


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
        """Return the value of a row; None if its list is too short or its dictionary is missing."""
        value = row[self.name]
        if self.key is None:
            return value
        if isinstance(self.key, str):
            return value.get(self.key) if isinstance(value, dict) else None
        return value[self.key] if isinstance(value, list) and len(value) > self.key else None

    def values(self, table: Any) -> list[Any]:
        """Return the values of all rows of a `datasets.Dataset`."""
        return [self.cell({self.name: value}) for value in table[self.name]]

    def cells(self, column: Any) -> Any:
        """Return the values of an Arrow column."""
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


def undecoded(table: Any, columns: Sequence[str]) -> Any:
    """Return a table whose images are not decoded, but bytes and paths."""
    import datasets

    for name in columns:
        feature = table.features[name]
        undecoded_image = datasets.Image(decode=False)
        if isinstance(feature, datasets.Image):
            table = table.cast_column(name, undecoded_image)
        elif isinstance(getattr(feature, "feature", None), datasets.Image):
            table = table.cast_column(name, datasets.List(undecoded_image))
        elif isinstance(feature, dict):
            fields = {
                key: undecoded_image if isinstance(kind, datasets.Image) else kind for key, kind in feature.items()
            }
            table = table.cast_column(name, fields)
    return table


def file_below(folder: Path, path: str, where: str) -> Path:
    """Resolve a relative or absolute path to a file below the folder of a table."""
    base = folder.resolve()
    relative = path[len(str(base)) + 1 :] if path.startswith(f"{base}/") else path
    return inside(base, relative, where)


def paths_of(cells: Any) -> list[str | None]:
    """Return the paths in an Arrow column of images; None for a cell with an embedded image or null."""
    import pyarrow
    import pyarrow.compute as pc

    cell_type = cells.type
    if pyarrow.types.is_string(cell_type) or pyarrow.types.is_large_string(cell_type):
        return cells.to_pylist()  # type: ignore[no-any-return]
    fields = (
        [cell_type.field(index).name for index in range(cell_type.num_fields)]
        if pyarrow.types.is_struct(cell_type)
        else []
    )
    if "path" not in fields:
        return [None] * len(cells)
    paths = pc.struct_field(cells, "path")
    if "bytes" in fields:
        paths = pc.if_else(pc.is_null(pc.struct_field(cells, "bytes")), paths, None)
    return paths.to_pylist()  # type: ignore[no-any-return]
