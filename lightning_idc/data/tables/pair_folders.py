"""Read pairs from two folders of images with equal file names, with an optional table of captions."""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from lightning_idc.data.splits import SPLIT_ALIASES, SPLITS
from lightning_idc.data.tables.files import Root
from lightning_idc.data.tables.pair_columns import CAPTIONS, SIDES, group_rows, is_pair_column
from lightning_idc.data.tables.record_table import RecordTable, concatenate
from lightning_idc.data.tables.tables import (
    ENDINGS,
    MAX_LISTED,
    Faults,
    Table,
    is_caption_column,
    missing_column,
    read_table,
    table_ending,
    table_stem,
)
from lightning_idc.images import decode
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import short
from lightning_idc.utils.text import printable

_IGNORED = ("Thumbs.db", "desktop.ini")


FOLDERS = (SIDES, ("A", "B"), ("T1", "T2"), ("t1", "t2"), ("im1", "im2"))
"""Names of the two folders of images that are recognised, such as those of data sets of change detection."""


def side_folders(root: Path, sides: tuple[str, str] | None = None) -> dict[str | None, tuple[str, str]]:
    """Folders of the first and the second images in a root folder, relative to it, by split.

    Args:
        root: folder with ``before/`` and ``after/`` or another pair of names, or with such a pair in each of its
            folders ``train/``, ``val/`` and ``test/``.
        sides: names of the two folders; one of :data:`FOLDERS` when None.

    Returns:
        The folders; the split is None without folders of splits. Empty if there are none.
    """
    for first, second in FOLDERS if sides is None else (sides,):
        if (root / first).is_dir() and (root / second).is_dir():
            return {None: (first, second)}
        by_split: dict[str | None, tuple[str, str]] = {}
        for folder in sorted(root.iterdir()):
            split = SPLIT_ALIASES.get(folder.name.lower(), folder.name.lower())
            if split in SPLITS and (folder / first).is_dir() and (folder / second).is_dir():
                by_split[split] = (f"{folder.name}/{first}", f"{folder.name}/{second}")
        if by_split:
            return by_split
    return {}


def read_two_folders(root: Root, folders: Mapping[str | None, tuple[str, str]]) -> tuple[RecordTable, str | None]:
    """Match images of two folders by name, and add the captions of a table.

    Args:
        root: root folder.
        folders: folders of both sides by split, from :func:`side_folders`. With splits, an id is ``SPLIT/NAME``.

    Returns:
        The pairs, and an error message if there is no table of captions, else None.

    Raises:
        DataError: an image has no partner, or the table names images that do not exist.
    """
    import pyarrow
    import pyarrow.compute as pc

    parts = [_matched(root, sides, split) for split, sides in folders.items()]
    uncaptioned = concatenate(parts)
    path = _captions_in(root.path)
    if path is None:
        return uncaptioned, (
            f"{root.path} has no captions.csv or captions.jsonl (columns id and captions): training and "
            "evaluation need captions; without them, only prediction is possible"
        )
    table = read_table(path, is_pair_column)
    if "id" not in table.columns:
        raise DataError(missing_column(table.names, "id", path, "the name of the images without their ending"))
    if not any(map(is_caption_column, table.columns)):
        raise DataError(missing_column(table.names, "captions", path, CAPTIONS))
    ids = pc.utf8_trim_whitespace(table.columns["id"])
    ids = pyarrow.array(map(_composed, ids.to_pylist()), pyarrow.large_string())
    index = pc.index_in(ids, value_set=uncaptioned.ids.values)
    unknown = np.flatnonzero(pc.is_null(index).to_numpy(zero_copy_only=False))
    names = " and ".join(f"{side}/" for side in next(iter(folders.values())))
    table.faults.add_rows(
        table.lines[unknown],
        lambda row: f"no images are called {short(ids[int(unknown[row])].as_py())} in {names}",
    )
    table.faults.check()
    sides = tuple(uncaptioned.rows.column(side).take(index) for side in SIDES)
    if None not in folders:
        table.columns["split"] = uncaptioned.rows.column("split").take(index)
    captioned = group_rows(table, root, ids, sides)
    captionless = np.setdiff1d(np.arange(len(uncaptioned)), index.to_numpy())
    records = concatenate([captioned, uncaptioned.take(captionless)])
    return records.take(pc.sort_indices(records.ids.values).to_numpy()), None


def _matched(root: Root, sides: tuple[str, str], split: str | None) -> RecordTable:
    """Pairs of images with equal names in two folders, without captions."""
    import pyarrow

    images = [images_below(root, side) for side in sides]
    unmatched = sorted(images[0].keys() ^ images[1].keys())
    if unmatched:
        examples = ", ".join(f"{sides[0] if name in images[0] else sides[1]}/{name}" for name in unmatched[:MAX_LISTED])
        raise DataError(
            f"{len(unmatched)} images in {root.path} have no partner of the same name on the other side: {examples}"
            f"{', ...' if len(unmatched) > MAX_LISTED else ''}"
        )
    names = sorted(images[0])
    paths = [pyarrow.array([side[name] for name in names], pyarrow.large_string()) for side in images]
    ids = [name if split is None else f"{split}/{name}" for name in names]
    pairs = Table(Faults(root.path, ""), ["id"], {}, np.zeros(len(names), np.int32))
    return group_rows(pairs, root, pyarrow.array(ids, pyarrow.large_string()), tuple(paths), split)


def _captions_in(folder: Path) -> Path | None:
    """Return the path of the table of captions in a folder; None if the folder has no such table."""
    tables = [path for path in tables_in(folder) if table_stem(path) == "captions"]
    if len(tables) > 1:
        names = ", ".join(path.name for path in tables)
        raise DataError(f"{folder} has several tables of captions ({names}); expected one")
    return tables[0] if tables else None


def tables_in(folder: Path) -> list[Path]:
    """List the tables in a folder by name, without hidden files such as those of macOS."""
    return sorted(
        path
        for path in folder.iterdir()
        if table_ending(path) in ENDINGS and not path.name.startswith(".") and path.is_file()
    )


def images_below(root: Root, side: str) -> dict[str, str]:
    """Map the images of one side, including subfolders, by their path relative to that side without the extension.

    Files that are not images are listed in a warning; hidden files are ignored.

    Returns:
        Paths relative to the root.

    Raises:
        DataError: two images differ only in their extension, or a name is not UTF-8.
    """
    images: dict[str, str] = {}
    skipped: list[str] = []
    base = root.path / side
    visited: set[str] = set()
    for folder, subfolders, files in os.walk(base, followlinks=root.follow_links):
        # a link may point to a parent folder
        paths = {name: os.path.join(folder, name) for name in subfolders if not name.startswith(".")}
        subfolders[:] = sorted(name for name, path in paths.items() if _is_unvisited(path, visited))
        if not root.follow_links:
            skipped += [f"{paths[name]} (a link)" for name in subfolders if os.path.islink(paths[name])]
        for name in sorted(files):
            if name.startswith(".") or name in _IGNORED:
                continue
            relative = Path(folder, name).relative_to(base).as_posix()
            if any("\ud800" <= letter <= "\udfff" for letter in relative):
                raise DataError(f"{base}: the name {short(os.fsencode(relative))} is not UTF-8; rename the file")
            stem, ending = os.path.splitext(relative)
            stem = _composed(stem)
            if ending.lower() not in decode.ENDINGS:
                skipped.append(f"{side}/{relative}")
            elif stem in images:
                raise DataError(
                    f"{base} holds {images[stem][len(side) + 1 :]!r} and {relative!r}; names must differ before the "
                    "extension"
                )
            else:
                images[stem] = f"{side}/{relative}"
    if skipped:
        names = printable(", ".join(sorted(skipped)[:MAX_LISTED])) + (", ..." if len(skipped) > MAX_LISTED else "")
        warnings.warn(
            f"{base}: skipped {len(skipped):,} files without the extension of an image: {names}. Supported: "
            f"{', '.join(sorted(decode.ENDINGS))}",
            stacklevel=2,
        )
    return images


def _composed(name: str) -> str:
    """Convert a name to Unicode's composed form (NFC); macOS writes accents as separate characters."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def _is_unvisited(path: str, visited: set[str]) -> bool:
    """Mark a folder as visited; False if it was visited before, possibly through a link."""
    real = os.path.realpath(path)
    if real in visited:
        return False
    visited.add(real)
    return True
