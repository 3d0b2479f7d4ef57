"""case-study: what different ways of training took as negatives for the same pairs (Figure 5 of ADPO)."""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

from lightning_idc.utils.errors import DataError
from lightning_idc.utils.text import printable

FILE = "negatives.json"


def run(given: list[str]) -> int:
    """The verb `case-study`."""
    from lightning_idc.cli import parser

    arguments = parser("case-study", "Show the negatives that stages of a run met last, pair by pair.")
    arguments.add_argument("run", type=Path, help="folder of a run, such as runs/adpo/2026-01-31_12-00-00")
    arguments.add_argument("--rows", type=_at_least_one, default=5, help="pairs to show")
    arguments.add_argument("--seed", type=int, default=0, help="draws other pairs")
    options = arguments.parse_args(given[1:])
    print(printable(case_study(options.run, options.rows, options.seed)))
    return 0


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number of at least 1, found {text!r}")
    return int(text)


def case_study(folder: Path, rows: int, seed: int = 0) -> str:
    """Positive caption and the negatives of every stage, for pairs that all of them met.

    Args:
        folder: of a run, with one folder per stage.
        rows: pairs.
        seed: of which pairs.

    Raises:
        DataError: no stage of the run kept its negatives, a file of them is damaged, or no pair was met by all.
    """
    files = sorted(folder.glob(f"*/{FILE}"), key=lambda path: (path.stat().st_mtime_ns, path))
    if not files:
        raise DataError(
            f"no stage of {str(folder)!r} has a {FILE}; stages with PreferenceOptimization write one when they finish"
        )
    met = {path.parent.name: _read(path) for path in files}
    common = sorted(set.intersection(*(set(pairs) for pairs in met.values())))
    if not common:
        raise DataError(f"no pair was met by all of {', '.join(met)}; train them on the same data")
    chosen = sorted(common, key=lambda id: zlib.crc32(f"{seed}/{id}".encode()))[:rows]
    width = max(len("positive"), *(len(stage) for stage in met))
    lines = []
    for id in sorted(chosen):
        lines += [id, f"  {'positive':<{width}}  {next(iter(met.values()))[id]['positive']}"]
        for stage, pairs in met.items():
            margin = pairs[id]["margin"]
            told = "" if margin is None else f"  (margin {margin:+.2f})"
            lines.append(f"  {stage:<{width}}  {pairs[id]['negative']}{told}")
    means = []
    for stage, pairs in met.items():
        shares = [_shared(pairs[id]["positive"], pairs[id]["negative"]) for id in common]
        means.append(
            f"  {stage:<{width}}  {100 * sum(shares) / len(shares):.0f} % of words in common with the positive"
        )
    return "\n".join([*lines, f"all {len(common)} pairs", *means])


def _read(path: Path) -> dict[str, Any]:
    """Pairs that a stage met, by id."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        sound = all(
            isinstance(pair["positive"], str)
            and isinstance(pair["negative"], str)
            and isinstance(pair["margin"], int | float | None)
            for pair in found.values()
        )
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        sound = False
    if not sound:
        raise DataError(
            f"{path} is damaged; expected positive, negative and margin by pair, as a stage writes them: run it again"
        )
    return found


def _shared(positive: str, negative: str) -> float:
    right, wrong = set(positive.lower().split()), set(negative.lower().split())
    return len(right & wrong) / max(1, len(right | wrong))
