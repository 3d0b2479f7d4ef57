"""What recipes have in common stands once, in ``recipes/_base``."""

from __future__ import annotations

import itertools
from pathlib import Path

RECIPES = sorted((Path(__file__).resolve().parents[2] / "recipes").rglob("*.yaml"))


def lines_in_common() -> tuple[int, int]:
    """Lines, without comments, that stand in a block of eight lines of another recipe; all lines."""
    lines = {
        path: [line for line in path.read_text(encoding="utf-8").splitlines() if line.split("#")[0].strip()]
        for path in RECIPES
    }
    blocks: dict[tuple[str, ...], set[Path]] = {}
    for path, own in lines.items():
        for start in range(len(own) - 7):
            blocks.setdefault(tuple(own[start : start + 8]), set()).add(path)
    shared = 0
    for own in lines.values():
        starts = [start for start in range(len(own) - 7) if len(blocks[tuple(own[start : start + 8])]) > 1]
        shared += len(set(itertools.chain.from_iterable(range(start, start + 8) for start in starts)))
    return shared, sum(map(len, lines.values()))


def test_what_recipes_share_stands_once() -> None:
    shared, total = lines_in_common()
    assert total > 1000 and shared / total < 0.1, f"{shared} of {total} lines"
