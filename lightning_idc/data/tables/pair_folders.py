"""Pairs of two folders of images with equal names, and the table of their captions."""

from __future__ import annotations

import os
import unicodedata
import warnings
from pathlib import Path

import numpy as np

from lightning_idc.data.tables.files import Root
from lightning_idc.data.tables.pair_columns import CAPTIONS, SIDES, group_rows, wanted
from lightning_idc.data.tables.record_table import RecordTable, concatenate
from lightning_idc.data.tables.tables import (
    ENDINGS,
    SHOWN,
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


def read_two_folders(root: Root) -> tuple[RecordTable, str | None]:
    """Pairs of ``before/`` and ``after/`` with equal names, and the captions of a table.

    Returns:
        The pairs, and the message that captions are missing if there is no table of them.

    Raises:
        DataError: an image has no partner, or the table names images that do not exist.
    """
    import pyarrow
    import pyarrow.compute as pc

    images = [images_below(root, side) for side in SIDES]
    lonely = sorted(images[0].keys() ^ images[1].keys())
    if lonely:
        shown = ", ".join(f"{'before' if name in images[0] else 'after'}/{name}" for name in lonely[:SHOWN])
        raise DataError(
            f"{len(lonely)} images in {root.path} have no partner of the same name on the other side: {shown}"
            f"{', ...' if len(lonely) > SHOWN else ''}"
        )
    names = sorted(images[0])
    paths = [pyarrow.array([side[name] for name in names], pyarrow.large_string()) for side in images]
    pairs = Table(Faults(root.path, ""), ["id"], {}, np.zeros(len(names), np.int32))
    uncaptioned = group_rows(pairs, root, pyarrow.array(names, pyarrow.large_string()), tuple(paths))
    path = _captions_in(root.path)
    if path is None:
        return uncaptioned, (
            f"{root.path} has no captions.csv or captions.jsonl (columns id and captions), so there is nothing to "
            "learn from or to compare with; without captions it can be predicted only"
        )
    table = read_table(path, wanted)
    if "id" not in table.columns:
        raise DataError(missing_column(table.names, "id", path, "the name of the images without their ending"))
    if not any(map(is_caption_column, table.columns)):
        raise DataError(missing_column(table.names, "captions", path, CAPTIONS))
    ids = pc.utf8_trim_whitespace(table.columns["id"])
    ids = pyarrow.array(map(_composed, ids.to_pylist()), pyarrow.large_string())
    index = pc.index_in(ids, value_set=uncaptioned.ids.values)
    unknown = np.flatnonzero(pc.is_null(index).to_numpy(zero_copy_only=False))
    table.faults.add_rows(
        table.lines[unknown],
        lambda row: f"there are no images called {short(ids[int(unknown[row])].as_py())} in before/ and after/",
    )
    table.faults.check()
    captioned = group_rows(table, root, ids, tuple(side.take(index) for side in paths))
    captionless = np.setdiff1d(np.arange(len(names)), index.to_numpy())
    records = concatenate([captioned, uncaptioned.take(captionless)])
    return records.take(pc.sort_indices(records.ids.values).to_numpy()), None


def _captions_in(folder: Path) -> Path | None:
    """The table of captions beside two folders."""
    tables = [path for path in tables_in(folder) if table_stem(path) == "captions"]
    if len(tables) > 1:
        names = ", ".join(path.name for path in tables)
        raise DataError(f"{folder} holds several tables of captions ({names}); leave only one there")
    return tables[0] if tables else None


def tables_in(folder: Path) -> list[Path]:
    """Tables in a folder, by name, without hidden ones, which some systems add to each."""
    return sorted(
        path
        for path in folder.iterdir()
        if table_ending(path) in ENDINGS and not path.name.startswith(".") and path.is_file()
    )


def images_below(root: Root, side: str) -> dict[str, str]:
    """Images of one side, also in folders below it: by their path without the ending, relative to the side.

    Files that are not images are counted and named in a warning; hidden ones are not looked at.

    Returns:
        Paths relative to the root.

    Raises:
        DataError: two images differ in nothing but their ending, or a name is not text.
    """
    images: dict[str, str] = {}
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
            if ending.lower() not in decode.ENDINGS:
                passed.append(f"{side}/{relative}")
            elif stem in images:
                raise DataError(
                    f"{base} holds {images[stem][len(side) + 1 :]!r} and {relative!r}; names must differ before the "
                    "ending"
                )
            else:
                images[stem] = f"{side}/{relative}"
    if passed:
        shown = printable(", ".join(sorted(passed)[:SHOWN])) + (", ..." if len(passed) > SHOWN else "")
        warnings.warn(
            f"{base}: passed over {len(passed):,} files that are not images by their ending: {shown}. Read are "
            f"{', '.join(sorted(decode.ENDINGS))}",
            stacklevel=2,
        )
    return images


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
