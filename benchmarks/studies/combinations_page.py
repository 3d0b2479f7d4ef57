"""Tables of docs/combinations.md, from ``benchmarks/studies/results/combinations.json``.

python -m benchmarks.studies.combinations_page  # prints the tables
python -m benchmarks.studies.combinations_page --write  # writes the tables to the page
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.harness import filled
from benchmarks.studies.readings import reading_of, uses_images
from benchmarks.studies.results_table import MIXED, NONE, RESULTS, below, gain_of, short
from lightning_idc.report.comparison import METRIC
from lightning_idc.report.table import Table

PAGE = Path(__file__).resolve().parents[2] / "docs" / "notes" / "combinations.md"
FACTS = ("type", "attributes", "relation")
COLUMNS = (
    "captioner",
    "row",
    "CIDEr-D",
    "baselines: constant caption, shuffled captions, identical images",
    "minus SFT+; pairs; seeds",
    "reading",
    "type, attributes, relation, %",
    "words; distinct",
    "steps",
)
ACROSS = "across "


def tables(results: Path = RESULTS) -> dict[str, str]:
    """Tables by the name of their marks.

    Args:
        results: folder of the file.
    """
    worlds = json.loads((results / f"{MIXED}.json").read_text(encoding="utf-8"))["worlds"]
    rows = [
        [name, row, *cells(world, row)]
        for name, world in worlds.items()
        if not name.startswith(ACROSS)
        for row in world["summary"]
    ]
    return {"rows": Table(COLUMNS, rows, text=len(COLUMNS)).markdown()}


def cells(world: Mapping[str, Any], row: str) -> list[str]:
    """Cells of a row after the captioner and its name.

    Args:
        world: study of a captioner.
        row: row of the study.
    """
    measurements, control = world["summary"][row], world["control"]
    facts = ", ".join(short(measurements["facts"][name][0]) for name in FACTS)
    steps = measurements["figures"].get("steps")
    gain = gain_of(world, row, control) if row != control else None
    low = below(row, world)
    ends = (
        [f"({short(of[0])}, {short(of[1])})" if of else NONE for of in (gain["pairs"], gain["interval"])]
        if gain
        else []
    )
    compares = any(uses_images([seed[name] for seed in world["each_seed"]]) for name in (row, control))
    reading = reading_of(gain, low, compares) if gain else ("below the baseline" if low else NONE)
    return [
        short(measurements[METRIC][0]),
        ", ".join(f"{value[0]:.0f}" for value in measurements["baselines"].values()),
        "; ".join([short(gain["mean"], "+"), *ends]) if gain else NONE,
        reading,
        facts,
        f"{short(measurements['words'][0])}; {measurements['distinct'][0]:.0f}",
        f"{steps[0]:.0f}" if steps else NONE,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="put them into the page")
    made = tables()
    if parser.parse_args().write:
        PAGE.write_text(filled(PAGE.read_text(encoding="utf-8"), made), encoding="utf-8")
    print("\n\n".join(made.values()))


if __name__ == "__main__":
    main()
