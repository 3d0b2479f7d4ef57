"""Is the gate of `compare` quiet about two captures of one page, and does it fire for every change?

    python -m benchmarks.studies.gate --work DIR [--root data/web_pages/usr/share/doc] [--noise 500] [--changes 500]
        [--subtle 250] [--redrawn 150] [--release RELEASE] [--out FILE]

1. Noise: two captures of an unchanged page, as many for each kind (`NOISES` of gate_captures.py).
2. Changes: `ChangeHtml` changes one property of one element, by all operators equally often; with --release, pairs
   of a release of `ReleasePairs` are taken in place of new ones.
3. Subtle: smaller changes of one element, and changes of one property of the whole page.
4. Redrawn: changes of one element, by all operators, while other hinting redraws the whole page.

The captures stay in DIR, and the command resumes. Each pair is decided by the gate of `lightning-idc compare` with
its default options.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.harness import report
from benchmarks.studies.gate_captures import (
    NOISES,
    SUBTLE,
    WHOLE_PAGE,
    capture_noise,
    capture_redrawn,
    capture_subtle,
    pages,
    save_pair,
)
from lightning_idc.serve.options import GateOptions
from lightning_idc.serve.pairs import list_pairs
from lightning_idc.synthesis import ChangeHtml, Chromium, HtmlFolder
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.web.operators import OPERATORS
from lightning_idc.utils.errors import DataError

MAX_TRIES = 6
"""Largest number of pages per pair: some have no text field, or nothing that an operator can change."""
RANGE = 2_000
"""Number of pages of each kind; no two kinds share a record."""
Capture = Callable[..., "tuple[Tensor, Tensor] | None"]
"""Takes both captures of a record with a ``browser``."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="folder of the captures")
    parser.add_argument("--root", help="folder of sites; templates only by default")
    parser.add_argument("--noise", type=int, default=500)
    parser.add_argument("--changes", type=int, default=500)
    parser.add_argument("--subtle", type=int, default=250)
    parser.add_argument("--redrawn", type=int, default=150)
    parser.add_argument("--release", type=Path, help="folder of a release with pairs.jsonl")
    parser.add_argument("--captures_only", action="store_true", help="decide nothing")
    parser.add_argument("--seed", type=int, default=11)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    work: Path = args.work
    plan: list[tuple[str, str, str, int, Capture]] = []
    for number, (noise, variants) in enumerate(NOISES.items()):
        for variant, (detail, fonts) in enumerate(variants.items()):
            count = _share(_share(args.noise, number, len(NOISES)), variant, len(variants))
            plan.append(("noise", noise, detail, count, partial(capture_noise, noise, fonts=fonts)))
    plan.append(("changes", "change", "", 0 if args.release else args.changes, change_capture))
    subtle = [*SUBTLE, *(f"page: {name}" for name in WHOLE_PAGE)]
    for number, change in enumerate(subtle):
        plan.append(("subtle", change, "", _share(args.subtle, number, len(subtle)), partial(capture_subtle, change)))
    for number, (detail, fonts) in enumerate(NOISES["hinting"].items()):
        count = _share(args.redrawn, number, len(NOISES["hinting"]))
        plan.append(("redrawn", "change", detail, count, partial(capture_redrawn, fonts=fonts)))
    source = pages(args.root, RANGE * len(plan), args.seed)
    for number, (part, kind, detail, count, capture) in enumerate(plan):
        if count:
            browser = Chromium()
            indices = range(number * RANGE, number * RANGE + min(RANGE, MAX_TRIES * count))
            capture_kind(work / part, kind, detail, source, indices, count, partial(capture, browser=browser))
            browser.close()
    if args.release:
        copy_release(args.release, work / "changes", args.changes)
    result: dict[str, Any] = {"pages": "documentation packages and templates" if args.root else "templates"}
    if not args.captures_only:
        result |= {part: measured(work / part, part) for part in ("noise", "changes", "subtle", "redrawn")}
    report(result, args.out, "playwright", seeds=[args.seed])


def _share(total: int, number: int, of: int) -> int:
    """Size of one of several parts of a number that differ by at most 1."""
    return total // of + (number < total % of)


def change_capture(record: Record, browser: Chromium) -> tuple[Tensor, Tensor] | None:
    """A page before and after a change by `ChangeHtml`; None if nothing in it can be changed as the record says."""
    ChangeHtml(browser, missing_sheets=0.5).process([record])
    return None if record.dropped else record.pair()


def capture_kind(
    folder: Path, kind: str, detail: str, source: HtmlFolder, indices: range, count: int, capture: Capture
) -> None:
    """Capture pairs of one kind until there are enough, and list them in ``pairs.jsonl``.

    Args:
        folder: folder of the pairs.
        kind: kind of noise or change.
        detail: what the kind was done with.
        source: source of pages.
        indices: records of the source.
        count: number of pairs.
        capture: takes both captures of a page.
    """
    from playwright.sync_api import Error

    folder.mkdir(parents=True, exist_ok=True)
    table = folder / "pairs.jsonl"
    tried = {row["index"]: row["pair"] for row in _lines(table)}
    captured = sum(tried.get(index, False) for index in indices)
    for index in indices:
        if captured >= count:
            return
        if index in tried:
            continue
        record = source.record(index)
        try:
            images = capture(record)
        except (DataError, Error) as error:
            print(f"{record.id}: {str(error).splitlines()[0]}", flush=True)
            images = None
        row = {"id": record.id, "index": index, "kind": kind, "detail": detail, "pair": images is not None}
        if images is not None:
            save_pair(folder, record.id, images, jpeg=kind == "jpeg")
            row["kind"] = record.facts["edit"] if kind == "change" else kind
            captured += 1
        with table.open("a") as file:
            file.write(json.dumps(row) + "\n")


def copy_release(release: Path, folder: Path, count: int) -> None:
    """Copy pairs of a release, as many for each operator, unless they were."""
    records = [record for record in _lines(release / "pairs.jsonl") if record.get("change")]
    rows = []
    for number, operator in enumerate(OPERATORS):
        pairs = [record for record in records if record["change"]["operator"] == operator]
        share = _share(count, number, len(OPERATORS))
        for record in pairs[:: max(1, len(pairs) // share if share else 1)][:share]:
            for side in ("before", "after"):
                (folder / side).mkdir(parents=True, exist_ok=True)
                if not (copy := folder / side / f"{record['id']}.png").exists():
                    shutil.copyfile(release / record[side], copy)
            rows.append({"id": record["id"], "kind": operator, "detail": record["change"]["tier"], "pair": True})
    (folder / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def measured(folder: Path, part: str) -> dict[str, Any]:
    """Decide each pair of a part, and count those that pass and those that fire, of each kind.

    Verdicts are written to ``verdicts.jsonl``, so that a stopped run resumes; remove it after a change of the gate.
    """
    table, verdicts = folder / "pairs.jsonl", folder / "verdicts.jsonl"
    rows = {row["id"]: row for row in _lines(table) if row["pair"]}
    decided = {row["id"]: row for row in _lines(verdicts)}
    gate, lenient = GateOptions().gate(), GateOptions(noise="lenient").gate()
    for pair in list_pairs([folder / "before", folder / "after"]) if rows else []:
        if pair.id in rows and pair.id not in decided:
            verdict = gate.check(pair)
            is_lenient = not verdict.changed or not lenient.check(pair).changed
            row = {"id": pair.id, "changed": verdict.changed, "noise": verdict.noise, "lenient": is_lenient}
            decided[pair.id] = row | {"compared": str(verdict.comparison), "equal": verdict.comparison.equal}
            with verdicts.open("a") as file:
                file.write(json.dumps(decided[pair.id]) + "\n")
    kinds: dict[str, Counter[str]] = defaultdict(Counter)
    wrong: dict[str, str] = {}
    for id, row in rows.items():
        decision = decided[id]
        kind = ", ".join(filter(None, (row["kind"], row["detail"] if part == "noise" else "")))
        kinds[kind].update(["pairs", "fired" if decision["changed"] else "quiet"])
        kinds[kind].update(["quiet with --noise lenient"] if decision["lenient"] else [])
        kinds[kind].update(["quiet with --noise count"] if decision["equal"] else [])
        if decision["changed"] == (part == "noise"):
            wrong[id] = f"{kind}: {decision['noise'] or decision['compared']}"
    return {"all": sum(kinds.values(), Counter()), "kinds": kinds, "wrong": wrong}


def _lines(table: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in table.read_text().splitlines()] if table.is_file() else []


if __name__ == "__main__":
    main()
