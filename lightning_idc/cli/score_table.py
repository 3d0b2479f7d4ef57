"""Printed output of `score`: a table of all parts, and notes."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_idc.metrics.captions import Scores


def show(result: Mapping[str, Any], parts: Mapping[str, Scores]) -> None:
    """Print a result with its scores by part."""
    from rich.console import Console

    from lightning_idc.report.summary import Summary, as_rich
    from lightning_idc.utils.text import plain

    protocol, headline = result["protocol"], result["counts"][result["headline"]]
    summary = Summary(
        {name: dict(scores.values) for name, scores in parts.items()},
        {name: scores.pairs for name, scores in parts.items()},
        references=headline["references"],
        notes=dict(result["not_computed"]),
    )
    width = max(shutil.get_terminal_size().columns, 60)
    console = Console(width=width, highlight=False, markup=False)
    counts = ", ".join(f"{count} {name}" for name, count in headline.items())
    title = f"{protocol['name']} ({protocol['hash']}): {counts}, x100"
    console.print()
    console.print(title, style="bold", soft_wrap=True)
    console.print(as_rich(summary, "", width))
    for line in _lines(result):
        console.print(f"  {plain(line, console.encoding)}", soft_wrap=True)


def _lines(result: Mapping[str, Any]) -> list[str]:
    """Lines below the table."""
    from lightning_idc.metrics.bootstrap import p_text

    varied = result["diversity"]
    lines = [
        f"{varied['distinct']:.0%} of the captions occur once, {varied['words']:.1f} words each, "
        f"{varied['vocabulary']} distinct words, {varied['no_change']:.1%} say nothing changed",
        *(f"warning: {remark}" for remark in result["remarks"]),
    ]
    empty = result["pairs_with_empty_references"]
    if empty:
        effect = "they count as unchanged" if "baselines" in result else "their captions score 0"
        lines.append(f"{empty} records have only empty references; {effect}")
    shown = [name for name in result["scores"][result["headline"]] if name not in ("BLEU-1", "BLEU-2", "BLEU-3")]
    if result["intervals"]:
        ends = [f"{name} {low:.1f} to {high:.1f}" for name in shown for low, high in [result["intervals"][name]]]
        lines.append(f"95 % intervals over pairs: {', '.join(ends)}")
    if result.get("against_unread"):
        pairs = result["against_pairs"]
        every = pairs + result["against_unread"]
        lines.append(f"compared on {pairs} of {every} pairs, those with parsed answers for both files")
    for name in shown if "against" in result else []:
        difference = result["against"][name]
        lines.append(
            f"{name}: {difference['difference']:+.1f} over {difference['first']:.1f} "
            f"(95 % {difference['low']:+.1f} to {difference['high']:+.1f}, p {p_text(difference['p'])}), "
            f"higher on {difference['wins']} pairs, lower on {difference['losses']}"
        )
    if "baselines" in result:
        judge = result["judge"]
        agreement = judge.get("kappa_with_words")
        kappa = "" if agreement is None else f", kappa with equal words {agreement:.2f}"
        lines.append(f"which claim states which difference: {judge['judge']}{kappa}")
        for name, parts in result["baselines"].items():
            values: dict[str, float] = {}
            for part_values in parts.values():  # the first part that has a metric comes first
                values = {**part_values, **values}
            scores = ", ".join(f"{m} {values[m]:.1f}" for m in result["protocol"]["metrics"] if m in values)
            lines.append(f"baseline, {name}: {scores}")
    elif "judge" in result:
        judge = result["judge"]
        mean = "no score" if judge["mean"] is None else f"{judge['mean']:.1f} of 100"
        lines.append(
            f"judge {judge['model']} ({judge['rubric']}): {mean} on {judge['scored']} captions, "
            f"{judge['unparsed']} answers unparsed"
        )
    lines.append(f"data {result['data']['fingerprint']}, captions {result['predictions']['digest']}")
    return lines
