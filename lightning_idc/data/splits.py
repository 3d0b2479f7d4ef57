"""Names of the splits of a data set."""

from __future__ import annotations

from typing import Literal, get_args

Split = Literal["train", "val", "test", "predict"]
SPLITS: tuple[Split, ...] = get_args(Split)
ANNOTATED_SPLITS: tuple[Split, ...] = ("train", "val", "test")
"""Splits whose pairs have captions or labels; those of ``predict`` may have none."""
SPLIT_ALIASES = {"training": "train", "valid": "val", "validation": "val", "dev": "val", "testing": "test"}
"""Other names of the splits, in tables and folders."""
