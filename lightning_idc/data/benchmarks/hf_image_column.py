"""ImageColumn: a column of images in a table of Hugging Face `datasets`, stored as bytes or as paths."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.utils.paths import inside


@dataclass(frozen=True)
class ImageColumn:
    """Column of images, or one element of a column of lists of images.

    Args:
        name: name of the column.
        index: position in each list; None if the column holds single images.
    """

    name: str
    index: int | None = None

    @classmethod
    def of(cls, name: str, columns: Sequence[str]) -> ImageColumn:
        """Parse a name such as ``image`` or ``images.0``; a column with the full name takes precedence."""
        column, _, index = name.rpartition(".")
        is_index = name not in columns and column in columns and index.isascii() and index.isdecimal()
        return cls(column, int(index)) if is_index else cls(name)

    def __str__(self) -> str:
        return self.name if self.index is None else f"{self.name}.{self.index}"

    def cell(self, row: Mapping[str, Any]) -> Any:
        """Return the image of a row; None if its list is too short."""
        value = row[self.name]
        if self.index is None:
            return value
        return value[self.index] if isinstance(value, list) and len(value) > self.index else None

    def cells(self, column: Any) -> Any:
        """Return the images of an Arrow column."""
        import pyarrow
        import pyarrow.compute as pc

        if self.index is None:
            return column
        lists = column.combine_chunks() if isinstance(column, pyarrow.ChunkedArray) else column
        if not hasattr(lists.type, "value_type"):
            return pyarrow.nulls(len(lists))  # not a list column; loading a pair reports this
        lists = lists.cast(pyarrow.large_list(lists.type.value_type))
        positions = pc.add(lists.offsets[:-1], self.index)
        has_image = pc.fill_null(pc.greater(pc.list_value_length(lists), self.index), False)
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
