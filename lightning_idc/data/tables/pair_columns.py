"""Rows of a table of pairs judged at once, column by column, where none of them is odd.

What is given back is what rows judged one by one give; where that is not sure, nothing is, and they are.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np

from lightning_idc.data.tables.plain_csv import PlainTable
from lightning_idc.data.tables.record_builder import RecordTableBuilder
from lightning_idc.data.tables.tables import Row, is_caption_column
from lightning_idc.utils.errors import DataError

SPLITS = ("train", "val", "test", "predict")
SAME = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}
SIDES = ("before", "after")
READ = ("id", *SIDES, "split", "change_type")
"""Columns that are read beside those of captions."""
# what str.split takes for blanks, but for the usual one
_BLANKS = "\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"


def add_columns(builder: RecordTableBuilder, table: PlainTable, file: Path, split: str | None) -> bool:
    """Add all rows of a table to a builder that has none, unless one of them is to be judged by itself.

    Args:
        builder: of records.
        table: with the columns before and after.
        file: that it was read from.
        split: of all pairs; None where a column names it or nothing does.
    """
    import pyarrow.compute as pc

    columns = {name: pc.utf8_trim_whitespace(table.columns[name]) for name in READ if name in table.columns}
    before, after = (columns[side] for side in SIDES)
    if not (builder.root.plain(before) and builder.root.plain(after)):
        return False
    splits = _filled(split, table) if split else _splits(columns["split"]) if "split" in columns else _none(table)
    captions = _captions(table, file)
    if splits is None or captions is None:
        return False
    ids = columns.get("id")
    unnamed = pc.equal(ids, "") if ids is not None else None
    if ids is None or unnamed is None:
        ids = ids_of(before, after)
    elif pc.any(unnamed).as_py():
        ids = pc.if_else(unnamed, ids_of(before, after), ids)
    kinds = _or_null(columns["change_type"]) if "change_type" in columns else _none(table)
    return builder.add_all(ids, (before, after), captions, (splits, kinds), str(file), table.lines)


def id_of(before: str, after: str) -> str:
    """Id of a pair without one; made of its own paths only, so that other pairs never change it."""
    own, first = _without_ending(before)
    other, second = _without_ending(after)
    return own if first == second else f"{own}..{other}"


def _without_ending(path: str) -> tuple[str, str]:
    """Path and name without the ending, as `PurePosixPath` has it, which takes six times as long."""
    if "//" in path or "/./" in path or path[:2] == "./":
        path = str(PurePosixPath(path))
    folder, slash, name = path.rpartition("/")
    stem, _, ending = name.rpartition(".")
    stem = stem if stem and ending else name
    return f"{folder}{slash}{stem}", stem


def ids_of(before: Any, after: Any) -> Any:
    """:func:`id_of` of Arrow arrays."""
    import pyarrow
    import pyarrow.compute as pc

    own, other = (pc.replace_substring_regex(side, r"([^/])\.[^./]+\z", r"\1") for side in (before, after))
    first, second = (pc.replace_substring_regex(side, "(?s)^.*/", "") for side in (own, other))
    both = pc.binary_join_element_wise(own, other, pyarrow.scalar("..", own.type))
    ids = pc.if_else(pc.equal(first, second), own, both)
    odd = pc.or_(*(pc.match_substring_regex(side, r"//|/\./|\A\./") for side in (before, after)))
    if not pc.any(odd).as_py():
        return ids
    pairs = zip(before.filter(odd).to_pylist(), after.filter(odd).to_pylist(), strict=True)
    return pc.replace_with_mask(ids, odd, pyarrow.array([id_of(*pair) for pair in pairs], ids.type))


def _captions(table: PlainTable, file: Path) -> tuple[Any, np.ndarray] | None:
    """Captions of all rows and how many each row has, as `Row.captions` gives them; None where one is refused."""
    import pyarrow
    import pyarrow.compute as pc

    columns = {name: column for name, column in table.columns.items() if is_caption_column(name)}
    rows = len(table.lines)
    if "captions" in columns and pc.any(pc.starts_with(pc.utf8_trim_whitespace(columns["captions"]), "[")).as_py():
        return _lists(columns, table, file)
    several = sorted(columns.keys() - {"captions", "caption"}, key=lambda name: (int(name.rpartition("_")[2]), name))
    order = [*(name for name in ("captions", "caption") if name in columns), *several]
    kept = np.ones((rows, len(order)), bool)
    for place, name in enumerate(order):
        if name in several:  # a column for each caption is blank where a pair has fewer
            kept[:, place] = pc.not_equal(columns[name], "").to_numpy(zero_copy_only=False)
    texts = [_with_single_blanks(columns[name]) for name in order] or [pyarrow.array([], pyarrow.large_string())]
    if len(texts) == 1 and kept.all():
        return texts[0], kept.sum(1)
    whole = pyarrow.chunked_array(texts).combine_chunks()
    row, column = np.nonzero(kept)
    return whole.take(pyarrow.array(column * rows + row)), kept.sum(1)


def _lists(columns: dict[str, Any], table: PlainTable, file: Path) -> tuple[Any, np.ndarray] | None:
    """Captions of a table some of whose cells hold JSON lists."""
    import pyarrow

    values = zip(*(column.to_pylist() for column in columns.values()), strict=True)
    try:
        found = [
            Row(file, line, dict(zip(columns, fields, strict=True))).captions()
            for line, fields in zip(table.lines.tolist(), values, strict=True)
        ]
    except DataError:
        return None
    texts = pyarrow.array([text for own in found for text in own], pyarrow.large_string())
    return texts, np.fromiter(map(len, found), np.int64, len(found))


def _with_single_blanks(texts: Any) -> Any:
    """``" ".join(text.split())`` of an Arrow array."""
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(texts)
    odd = pc.match_substring_regex(texts, f"  |[{_BLANKS}]")
    if not pc.any(odd).as_py():
        return texts
    return pc.replace_with_mask(texts, odd, pc.replace_substring_regex(texts.filter(odd), f"[ {_BLANKS}]+", " "))


def _splits(texts: Any) -> Any:
    """Names of splits, null for none; None where one is unknown."""
    import pyarrow

    named = texts.dictionary_encode()
    found = [SAME.get(text.lower(), text.lower()) or None for text in named.dictionary.to_pylist()]
    if not set(found) <= {None, *SPLITS}:
        return None
    return pyarrow.array(found, pyarrow.large_string()).take(named.indices)


def _filled(text: str, table: PlainTable) -> Any:
    import pyarrow

    return pyarrow.repeat(pyarrow.scalar(text, pyarrow.large_string()), len(table.lines))


def _none(table: PlainTable) -> Any:
    import pyarrow

    return pyarrow.nulls(len(table.lines), pyarrow.large_string())


def _or_null(texts: Any) -> Any:
    import pyarrow
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, ""), pyarrow.scalar(None, texts.type), texts)
