"""Layouts of an export: the columns of a row as TRL, ms-swift, LLaMA-Factory and plain tables name them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from lightning_idc.data.export.rows import ExportRow, RejectedImages

Format = Literal["trl", "ms-swift", "llamafactory", "parquet", "webdataset"]
_MARKERS = "<image><image>"
"""Where ms-swift and LLaMA-Factory insert the two images into the text."""
SIDES_OF: dict[RejectedImages, tuple[int, int]] = {"identical": (0, 0), "swapped": (1, 0)}
"""Sides, 0 for before and 1 for after, that ``rejected_images`` consists of."""


def shared_columns(row: ExportRow) -> dict[str, Any]:
    """Columns of every layout; trainers ignore those that they do not know, and pass them to rewards."""
    names = ("id", "captions", "change_type", "difficulty", "difficulty_level", "boxes", "facts")
    return {name: getattr(row, name) for name in names}


def trl_columns(row: ExportRow) -> dict[str, Any]:
    """Conversations: ``prompt`` with ``chosen`` and ``rejected``, or with ``completion`` without negatives."""
    columns: dict[str, Any] = {"prompt": [_turn("user", row.prompt)]}
    answer = None if row.chosen is None else [_turn("assistant", row.chosen)]
    if row.rejected is None:
        return {**columns, "completion": answer}
    return {**columns, "chosen": answer, "rejected": [_turn("assistant", row.rejected)]}


def swift_columns(row: ExportRow) -> dict[str, Any]:
    """``messages`` with the chosen answer, and ``rejected_response``."""
    turns = [_turn("user", _MARKERS + row.prompt)]
    turns += [] if row.chosen is None else [_turn("assistant", row.chosen)]
    return {"messages": turns, **({} if row.rejected is None else {"rejected_response": row.rejected})}


def llama_factory_columns(row: ExportRow) -> dict[str, Any]:
    """``conversations``, with the answer as its last turn or as ``chosen`` and ``rejected``."""
    turns = [{"from": "human", "value": _MARKERS + row.prompt}]
    answer = {"from": "gpt", "value": row.chosen}
    if row.rejected is None:
        return {"conversations": turns + ([] if row.chosen is None else [answer])}
    return {"conversations": turns, "chosen": answer, "rejected": {"from": "gpt", "value": row.rejected}}


def plain_columns(row: ExportRow) -> dict[str, Any]:
    """``prompt``, and with negatives ``chosen`` and ``rejected``, as texts."""
    return {"prompt": row.prompt, **({} if row.rejected is None else {"chosen": row.chosen, "rejected": row.rejected})}


COLUMNS: dict[Format, Callable[[ExportRow], dict[str, Any]]] = {
    "trl": trl_columns,
    "ms-swift": swift_columns,
    "llamafactory": llama_factory_columns,
    "parquet": plain_columns,
    "webdataset": plain_columns,
}
"""Columns of each layout besides :func:`shared_columns` and the images."""


def llama_factory_info(splits: Sequence[str], has_rejected: bool) -> dict[str, Any]:
    """``dataset_info.json`` of LLaMA-Factory: one data set ``pairs_SPLIT`` for the file of each split."""
    columns = {"messages": "conversations", "images": "images"}
    columns |= {"chosen": "chosen", "rejected": "rejected"} if has_rejected else {}
    entry = {"formatting": "sharegpt", "columns": columns, **({"ranking": True} if has_rejected else {})}
    return {f"pairs_{split}": {"file_name": f"{split}.jsonl", **entry} for split in splits}


def _turn(role: str, text: str) -> dict[str, str]:
    return {"role": role, "content": text}
