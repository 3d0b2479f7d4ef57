"""Reading a folder of pairs: two folders of images with equal names, or tables that name both images of each pair."""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning_idc.data.tables.files import Root
from lightning_idc.data.tables.pair_columns import READ, SAME, SIDES, SPLITS, add_columns, id_of
from lightning_idc.data.tables.plain_csv import read_plain_csv
from lightning_idc.data.tables.record_builder import RecordTableBuilder
from lightning_idc.data.tables.record_table import RecordTable, concatenate
from lightning_idc.data.tables.tables import (
    KINDS,
    Row,
    is_caption_column,
    require,
    short,
    stream_table,
)
from lightning_idc.images.image_files import ENDINGS
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.text import printable

SHOWN = 5
_IGNORED = ("Thumbs.db", "desktop.ini")
_OR = "or 'caption', or 'caption_1' to 'caption_n'"


@dataclass(frozen=True, slots=True)
class FolderContents:
    """What a folder of pairs holds.

    Args:
        records: of all pairs.
        no_captions: why there is nothing to learn from; None where there are captions.
    """

    records: RecordTable
    no_captions: str | None


def read_tables(root: Root, tables: Sequence[tuple[Path, str | None]]) -> FolderContents:
    """Pairs of tables with the columns before and after.

    Args:
        root: that the paths in them are relative to.
        tables: with the split that each holds, None where a column or nothing names it.

    Raises:
        DataError: a table cannot be read, lacks a column or contradicts itself, with its line.
    """
    found: list[RecordTable] = []
    names: dict[str, int] = {}
    no_captions: str | None = None
    captioned = False
    for path, split in tables:
        columns, rows = stream_table(path)
        for needed in SIDES:
            if needed not in columns:
                raise DataError(require(columns, needed, path, "the path of an image"))
        if any(is_caption_column(column) for column in columns):
            captioned = True
        elif no_captions is None:
            no_captions = require(columns, "captions", path, _OR)
        builder = RecordTableBuilder(root, names)
        if path.suffix.lower() != ".csv" or not _add_columns(builder, path, columns, split):
            _add_rows(builder, rows, columns, split, str(path))
        found.append(builder.finish())
    # a table without captions beside one with them, as for predict, has empty captions
    return FolderContents(concatenate(found), None if captioned else no_captions)


def _add_rows(
    builder: RecordTableBuilder, rows: Iterable[Row], columns: Sequence[str], split: str | None, file: str
) -> None:
    """Add rows one by one, whatever they hold; what is wrong with one is said with its line."""
    has_id, has_type, has_split = (name in columns for name in ("id", "change_type", "split"))
    for row in rows:
        before, after = (_path(row, side, builder.root) for side in SIDES)
        name = (row.text("id") if has_id else None) or id_of(before, after)
        named = split or (_split(row) if has_split else None)
        kind = row.text("change_type") if has_type else None
        builder.add(name, before, after, row.captions(), named, kind, file, row.line)


def _add_columns(builder: RecordTableBuilder, path: Path, columns: Sequence[str], split: str | None) -> bool:
    """Add the rows of a CSV at once, unless one of them is to be judged by itself."""
    table = read_plain_csv(path, columns, [name for name in columns if name in READ or is_caption_column(name)])
    return table is not None and add_columns(builder, table, path, split)


def _path(row: Row, side: str, root: Root) -> str:
    relative = row.text(side)
    if relative is None:
        raise DataError(f"{row.where}: {side} is empty; expected the path of an image, relative to {root.path}")
    root.parts(relative, row.where)
    return relative


def _split(row: Row) -> str | None:
    named = row.text("split")
    if named is None:
        return None
    split = SAME.get(named.lower(), named.lower())
    if split not in SPLITS:
        raise DataError(f"{row.where}: the split {named!r} is unknown; expected one of {', '.join(SPLITS)}")
    return split


def read_two_folders(root: Root) -> FolderContents:
    """Pairs of ``before/`` and ``after/`` with equal names, and what a table of captions says of them.

    Raises:
        DataError: an image has no partner, or the table names images that are not there.
    """
    sides = [images_below(root, side) for side in SIDES]
    lonely = sorted(sides[0].keys() ^ sides[1].keys())
    if lonely:
        shown = ", ".join(f"{'before' if name in sides[0] else 'after'}/{name}" for name in lonely[:SHOWN])
        raise DataError(
            f"{len(lonely)} images in {root.path} have no partner of the same name on the other side: {shown}"
            f"{', ...' if len(lonely) > SHOWN else ''}"
        )
    builder = RecordTableBuilder(root)
    for name, before in sorted(sides[0].items()):
        builder.add(name, before, sides[1][name], file=str(root.path))
    named = [path for path in tables_in(root.path) if path.stem == "captions"]
    if len(named) > 1:
        names = ", ".join(path.name for path in named)
        raise DataError(f"{root.path} holds several tables of captions ({names}); leave only one there")
    table = named[0] if named else None
    if table is None:
        return FolderContents(
            builder.finish(),
            f"{root.path} has no captions.csv or captions.jsonl (columns id and captions), so there is nothing to "
            "learn from or to compare with; without captions it can be predicted only",
        )
    columns, rows = stream_table(table)
    if "id" not in columns:
        raise DataError(require(columns, "id", table, "the name of the images without their ending"))
    if not any(is_caption_column(column) for column in columns):
        raise DataError(require(columns, "captions", table, _OR))
    for row in rows:
        name = _composed(row.text("id") or "")
        if name not in builder:
            raise DataError(f"{row.where}: there are no images called {row.text('id')!r} in before/ and after/")
        builder.extend(name, row.captions())
        builder.label(name, _split(row), row.text("change_type"), str(table), row.line)
    return FolderContents(builder.finish(), None)


def tables_in(folder: Path) -> list[Path]:
    """CSV and JSONL files in a folder, by name; hidden ones, which some systems add to each, are not looked at."""
    return sorted(
        path
        for path in folder.iterdir()
        if path.suffix.lower() in KINDS and not path.name.startswith(".") and path.is_file()
    )


def images_below(root: Root, side: str) -> dict[str, str]:
    """Images of one side, also in folders below it: by their path without the ending, relative to the side.

    Files that are not images are counted and named in a warning; hidden ones are not looked at.

    Returns:
        Paths relative to the root.

    Raises:
        DataError: two images differ in nothing but their ending, or a name is not text.
    """
    found: dict[str, str] = {}
    passed: list[str] = []
    base = root.path / side
    seen: set[str] = set()
    for folder, below, files in os.walk(base, followlinks=root.follow_links):
        # a link may lead back to a folder above it
        below[:] = sorted(name for name in below if not name.startswith(".") and _new(os.path.join(folder, name), seen))
        if not root.follow_links:
            passed += [
                f"{os.path.join(folder, name)} (a link)" for name in below if os.path.islink(os.path.join(folder, name))
            ]
        for name in sorted(files):
            if name.startswith(".") or name in _IGNORED:
                continue
            relative = Path(folder, name).relative_to(base).as_posix()
            if any("\ud800" <= letter <= "\udfff" for letter in relative):
                raise DataError(f"{base}: the name {short(os.fsencode(relative))} is not UTF-8; rename the file")
            stem, ending = os.path.splitext(relative)
            stem = _composed(stem)
            if ending.lower() not in ENDINGS:
                passed.append(f"{side}/{relative}")
            elif stem in found:
                raise DataError(
                    f"{base} holds {found[stem][len(side) + 1 :]!r} and {relative!r}; names must differ before the "
                    "ending"
                )
            else:
                found[stem] = f"{side}/{relative}"
    if passed:
        shown = printable(", ".join(sorted(passed)[:SHOWN])) + (", ..." if len(passed) > SHOWN else "")
        warnings.warn(
            f"{base}: passed over {len(passed):,} files that are not images by their ending: {shown}. Read are "
            f"{', '.join(sorted(ENDINGS))}",
            stacklevel=2,
        )
    return found


def _composed(name: str) -> str:
    """A name with its accents in its letters: some systems write them apart, which looks the same."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _new(path: str, seen: set[str]) -> bool:
    """Whether a folder has not been walked through yet, under whatever name."""
    real = os.path.realpath(path)
    if real in seen:
        return False
    seen.add(real)
    return True
