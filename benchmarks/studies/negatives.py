"""Negatives of different training methods for the same pairs (Figure 5 of ADPO).

    python benchmarks/studies/negatives.py runs/adpo/2026-01-31_12-00-00 [--rows 5] [--seed 0]

Stages with PreferenceOptimization write their last negatives to ``negatives.json``. This prints the positive caption
and each stage's negative for some pairs that all stages compared, and for all of these pairs the mean fraction of words
that the positive and the negative share.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path

from lightning_idc.methods.adpo.record import NEGATIVES
from lightning_idc.utils.text import printable


def side_by_side(folder: Path, rows: int, seed: int = 0) -> str:
    """Positive caption and the negatives of every stage, for pairs that all stages compared.

    Args:
        folder: folder of a run, with one folder per stage.
        rows: number of pairs.
        seed: seed of the selection of pairs.

    Raises:
        ValueError: no pair was compared by all stages.
    """
    files = sorted(folder.glob(f"*/**/{NEGATIVES}"), key=lambda path: (path.stat().st_mtime_ns, path))
    stages = {path.relative_to(folder).parts[0]: json.loads(path.read_text(encoding="utf-8")) for path in files}
    common = sorted(set.intersection(*map(set, stages.values()))) if stages else []
    if not common:
        raise ValueError(f"no pair was compared by all stages of {folder} ({', '.join(stages) or 'there are none'})")
    chosen = sorted(common, key=lambda id: zlib.crc32(f"{seed}/{id}".encode()))[:rows]
    width = max(len("positive"), *map(len, stages))
    lines = []
    for id in sorted(chosen):
        lines += [id, f"  {'positive':<{width}}  {next(iter(stages.values()))[id]['positive']}"]
        for stage, pairs in stages.items():
            lines.append(f"  {stage:<{width}}  {pairs[id]['negative']}  (margin {pairs[id]['margin']:+.2f})")
    lines.append(f"all {len(common)} pairs")
    for stage, pairs in stages.items():
        shares = [_shared_words(pairs[id]["positive"], pairs[id]["negative"]) for id in common]
        share = 100 * sum(shares) / len(shares)
        lines.append(f"  {stage:<{width}}  {share:.0f} % of words in common with the positive")
    return "\n".join(lines)


def _shared_words(positive: str, negative: str) -> float:
    first, second = set(positive.lower().split()), set(negative.lower().split())
    return len(first & second) / max(1, len(first | second))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="folder of a run")
    parser.add_argument("--rows", type=int, default=5, help="pairs to show")
    parser.add_argument("--seed", type=int, default=0, help="draws other pairs")
    options = parser.parse_args()
    print(printable(side_by_side(options.run, options.rows, options.seed)))
