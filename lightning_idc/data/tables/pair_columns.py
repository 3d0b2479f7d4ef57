"""Convert a table to a :class:`RecordTable`, vectorised over all rows.

Arrow and numpy check all rows; Python code handles suspicious rows only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lightning_idc.data.splits import SPLIT_ALIASES, SPLITS
from lightning_idc.data.tables.files import Root, folders_of
from lightning_idc.data.tables.record_table import RecordTable, lists_of
from lightning_idc.data.tables.tables import Table, is_caption_column, missing_column
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.jsonfiles import check_text, parse_json, short
from lightning_idc.utils.paths import MAX_NAME_BYTES

SIDES = ("before", "after")
CAPTIONS = "or 'caption', or 'caption_1' to 'caption_n'"
# the white space of str.split other than the space character
_BLANKS = "\t-\r\x1c-\x1f\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
_JSON_LIST = r"""^\s*\[\s*["'\]]"""


def is_pair_column(name: str) -> bool:
    """Whether a column has a meaning for pairs."""
    return name in ("id", *SIDES, "images", "split", "change_type") or is_caption_column(name)


def pairs_of(root: Root, table: Table, split: str | None) -> tuple[RecordTable, str | None]:
    """Convert a table with the columns before and after, or images with both paths.

    Args:
        root: folder that the paths are relative to.
        table: table with the columns for which :func:`is_pair_column` is true.
        split: split of all pairs; None to use the column ``split``, if there is one.

    Returns:
        The pairs, and an error message if there is no caption column, else None.

    Raises:
        DataError: a column is missing, or rows are contradictory; the first five bad rows are listed.
    """
    if "images" in table.columns and not any(side in table.names for side in SIDES):
        _split_images(table)
        table.faults.check()
    for side in SIDES:
        if side not in table.columns:
            raise DataError(missing_column(table.names, side, table.path, "the path of an image"))
    sides = tuple(_paths(table, side, root) for side in SIDES)
    ids = _ids(table, sides)
    records = group_rows(table, root, ids, sides, split)
    captioned = any(map(is_caption_column, table.columns))
    return records, None if captioned else missing_column(table.names, "captions", table.path, CAPTIONS)


def group_rows(table: Table, root: Root, ids: Any, sides: tuple[Any, ...], split: str | None = None) -> RecordTable:
    """Group rows by id into one record each, with the captions of all rows.

    Raises:
        DataError: rows of one id contradict each other, or a cell is invalid.
    """
    import pyarrow

    texts, counts = _captions(table)
    labels = {
        "split": _repeat(split, len(table)) if split else _splits(table),
        "change_type": _column(table, "change_type"),
    }
    values = dict(zip(SIDES, sides, strict=True)) | labels
    encoded_ids = ids.dictionary_encode()
    record_of_row = encoded_ids.indices.to_numpy()
    # ids are numbered in the order of their first rows
    firsts = np.searchsorted(np.maximum.accumulate(record_of_row), np.arange(len(encoded_ids.dictionary)))
    for name, column in values.items():
        _check_consistent(table, ids, firsts[record_of_row], name, column)
    table.faults.check()
    order = np.argsort(np.repeat(record_of_row, counts), kind="stable")
    counts = np.bincount(record_of_row, weights=counts, minlength=len(firsts)).astype(np.int64)
    rows, unit = pyarrow.array(firsts), table.faults.unit
    file = f"{table.path}, {unit}" if unit else f"{table.path}"
    columns = {
        "id": encoded_ids.dictionary,
        **{side: values[side].take(rows) for side in SIDES},
        "captions": lists_of(texts.take(pyarrow.array(order)), counts),
        **{name: _null_for_empty(values[name].take(rows)) for name in labels},
        "file": pyarrow.DictionaryArray.from_arrays(np.zeros(len(firsts), np.int32), _texts(file)),
        "line": pyarrow.array(table.lines[firsts]),
    }
    return RecordTable(root, pyarrow.RecordBatch.from_pydict(columns))


# ---- images ---------------------------------------------------------------------------------------------------


def _split_images(table: Table) -> None:
    """Convert TRL's column ``images``, a list of both images, to the columns before and after."""
    import pyarrow

    sides: list[tuple[str, str]] = []
    for line, cell in zip(table.lines.tolist(), table.columns.pop("images").to_pylist(), strict=True):
        try:
            sides.append(two_images(parse_json(cell, "images"), "images"))
        except DataError as error:
            table.faults.add(line, str(error))
    for index, side in enumerate(SIDES):
        table.columns[side] = pyarrow.array([pair[index] for pair in sides], pyarrow.large_string())


def two_images(value: Any, where: str) -> tuple[str, str]:
    """Return the two paths in a list of two images, each a path or an object with a path.

    Raises:
        DataError: the value has another form.
    """
    items = value if isinstance(value, list) else []
    paths: list[Any] = [item.get("path") if isinstance(item, dict) else item for item in items]
    if len(paths) != 2 or not all(isinstance(path, str) and path for path in paths):
        raise DataError(f"{where} is {short(value)}; expected the paths of two images")
    return check_text(paths[0], where), check_text(paths[1], where)


def _paths(table: Table, side: str, root: Root) -> Any:
    """Normalise the paths of one side; invalid ones are added to the faults of the table."""
    import pyarrow.compute as pc

    paths = pc.utf8_trim_whitespace(table.columns[side])
    if pc.any(pc.match_substring(paths, "\\")).as_py():
        paths = pc.replace_substring(paths, "\\", "/")
    if any(pc.any(pc.match_substring(paths, part)).as_py() for part in ("//", "./")):
        for pattern, replacement in ((r"/(?:\.?/)+", "/"), (r"\A(?:\./+)+", "")):
            paths = pc.replace_substring_regex(paths, pattern, replacement)
    empty = pc.equal(paths, "").to_numpy(zero_copy_only=False)
    message = f"{side} is empty; expected the path of an image, relative to {root.path}"
    table.faults.add_rows(table.lines[empty], lambda index: message)

    # all paths in a forbidden folder are invalid
    folders = folders_of(paths)
    forbidden = [
        code for code, folder in enumerate(folders.dictionary.to_pylist()) if root.path_error(folder, is_folder=True)
    ]
    suspicious = np.isin(folders.indices.to_numpy(), forbidden)
    names = pc.replace_substring_regex(paths, "(?s)^.*/", "")
    suspicious |= pc.is_in(names, value_set=_texts("", ".", "..")).to_numpy(zero_copy_only=False)
    suspicious |= pc.greater(pc.binary_length(names), MAX_NAME_BYTES).to_numpy(zero_copy_only=False)
    rows = np.flatnonzero(suspicious & ~empty)
    table.faults.add_rows(table.lines[rows], lambda index: str(root.path_error(paths[int(rows[index])].as_py())))
    return paths


def _ids(table: Table, sides: tuple[Any, ...]) -> Any:
    """Return the column ``id``; a row without an id gets one from its paths, which is independent of other rows."""
    import pyarrow.compute as pc

    ids = _column(table, "id")
    unnamed = pc.equal(ids, "")
    if not pc.any(unnamed).as_py():
        return ids
    before, after = (pc.replace_substring_regex(side, r"([^/])\.[^./]+\z", r"\1") for side in sides)
    names = (pc.replace_substring_regex(side, "(?s)^.*/", "") for side in (before, after))
    both = pc.binary_join_element_wise(before, after, _texts("..")[0])
    return pc.if_else(unnamed, pc.if_else(pc.equal(*names), before, both), ids)


# ---- captions -------------------------------------------------------------------------------------------------


def _captions(table: Table) -> tuple[Any, NDArray[np.int64]]:
    """Return the captions of all rows (captions, caption, then caption_1 to caption_n), and their number per row."""
    import pyarrow
    import pyarrow.compute as pc

    encoded_ids = sorted(
        (name for name in table.columns if is_caption_column(name) and "_" in name),
        key=lambda name: (int(name.rpartition("_")[2]), name),
    )
    texts, counts = [_texts()], [np.zeros(len(table), np.int64)]
    for name in ("captions", "caption", *encoded_ids):
        if name not in table.columns:
            continue
        column = table.columns[name]
        count = np.ones(len(table), np.int64)
        if name in encoded_ids:  # numbered columns are blank for pairs with fewer captions
            full = pc.not_equal(column, "")
            column, count = column.filter(full), full.to_numpy(zero_copy_only=False).astype(np.int64)
        elif name == "captions" and pc.any(pc.match_substring(column, "[")).as_py():
            lists = _lists(table, column)
            column, count = lists.flatten(), pc.list_value_length(lists).to_numpy()
        texts.append(_with_single_spaces(column))
        counts.append(count)
    flat = pyarrow.chunked_array(texts).combine_chunks()
    record_of_row = np.concatenate([np.repeat(np.arange(len(table)), count) for count in counts])
    return flat.take(pyarrow.array(np.argsort(record_of_row, kind="stable"))), np.sum(counts, 0)


def _lists(table: Table, column: Any) -> Any:
    """Return the captions of each cell of a column, which may be a JSON list."""
    import pyarrow
    import pyarrow.compute as pc

    is_list = pc.match_substring_regex(column, _JSON_LIST).to_pylist()
    lists: list[list[str]] = []
    for line, cell, parse in zip(table.lines.tolist(), column.to_pylist(), is_list, strict=True):
        try:
            lists.append(_texts_of(cell) if parse else [cell])
        except DataError as error:
            table.faults.add(line, str(error))
            lists.append([])
    return pyarrow.array(lists, pyarrow.large_list(pyarrow.large_string()))


def _texts_of(cell: str) -> list[str]:
    """Parse a JSON list of captions."""
    try:
        captions: list[str] = parse_json(cell, "captions")
    except DataError as error:
        raise DataError(f"{error}; expected a JSON list of texts in double quotes") from None
    for caption in captions:
        if not isinstance(caption, str):
            raise DataError(f"a caption is {short(caption)}; expected text")
        check_text(caption, "a caption")
    return captions


def _with_single_spaces(texts: Any) -> Any:
    """Apply ``" ".join(text.split())`` to all texts of an Arrow array."""
    import pyarrow.compute as pc

    texts = pc.utf8_trim_whitespace(texts)
    has_other_blanks = pc.match_substring_regex(texts, f"  |[{_BLANKS}]")
    if not pc.any(has_other_blanks).as_py():
        return texts
    return pc.replace_with_mask(
        texts, has_other_blanks, pc.replace_substring_regex(texts.filter(has_other_blanks), f"[ {_BLANKS}]+", " ")
    )


# ---- labels and repeated ids ----------------------------------------------------------------------------------


def _splits(table: Table) -> Any:
    """Return the canonical split name of each row; "" if it is not specified."""
    import pyarrow
    import pyarrow.compute as pc

    named = _column(table, "split").dictionary_encode()
    lower = [name.lower() for name in named.dictionary.to_pylist()]
    splits = pyarrow.array([SPLIT_ALIASES.get(name, name) for name in lower], pyarrow.large_string()).take(
        named.indices
    )
    unknown = np.flatnonzero(~pc.is_in(splits, value_set=_texts(*SPLITS, "")).to_numpy(zero_copy_only=False))
    table.faults.add_rows(
        table.lines[unknown],
        lambda index: (
            f"the split {short(named[int(unknown[index])].as_py())} is unknown; expected one of {', '.join(SPLITS)}"
        ),
    )
    return splits


def _check_consistent(table: Table, ids: Any, firsts: NDArray[Any], name: str, column: Any) -> None:
    """Report rows that contradict the first row of the same id.

    Args:
        table: table of the rows.
        ids: id of each row.
        firsts: index of the first row with the same id, for each row.
        name: name of the column.
        column: cells of the column.
    """
    import pyarrow
    import pyarrow.compute as pc

    first_values = column.take(pyarrow.array(firsts))
    if first_values.equals(column):
        return
    rows = np.flatnonzero(pc.not_equal(column, first_values).to_numpy(zero_copy_only=False))

    def describe(index: int) -> str:
        row = int(rows[index])
        return (
            f"pair {short(ids[row].as_py())} has the {name} {short(column[row].as_py())}, but "
            f"{short(first_values[row].as_py())} in {table.faults.unit} {table.lines[firsts[row]]}; ids must be unique"
        )

    table.faults.add_rows(table.lines[rows], describe)


# ---- Arrow ----------------------------------------------------------------------------------------------------


def _texts(*values: str | None) -> Any:
    import pyarrow

    return pyarrow.array(values, pyarrow.large_string())


def _repeat(text: str, count: int) -> Any:
    import pyarrow

    return pyarrow.repeat(pyarrow.scalar(text, pyarrow.large_string()), count)


def _column(table: Table, name: str) -> Any:
    """Return the stripped texts of a column; "" in every row if the column does not exist."""
    import pyarrow.compute as pc

    return pc.utf8_trim_whitespace(table.columns[name]) if name in table.columns else _repeat("", len(table))


def _null_for_empty(texts: Any) -> Any:
    import pyarrow
    import pyarrow.compute as pc

    return pc.if_else(pc.equal(texts, ""), pyarrow.scalar(None, texts.type), texts)
