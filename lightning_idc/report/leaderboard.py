"""A leaderboard of results, with one table per data set and protocol, since only these are comparable."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from lightning_idc.metrics.baselines import CONSTANT
from lightning_idc.metrics.bootstrap import compare, p_text
from lightning_idc.metrics.captions import Scores
from lightning_idc.metrics.protocols import PROTOCOLS, Protocol, evaluate, protocol_named
from lightning_idc.metrics.reading import read_predictions
from lightning_idc.metrics.results import METRICS, PREDICTIONS, digest, fingerprint, part_of
from lightning_idc.report.pages import write_page
from lightning_idc.report.result_rows import LeaderboardRow, group_by_captioner, relative_name
from lightning_idc.report.summary import HEADLINE
from lightning_idc.report.table import Table
from lightning_idc.utils.errors import DataError, IDCError
from lightning_idc.utils.text import markdown, plain

# metrics whose score of a corpus is the mean of the scores of its pairs, so that seeds can be averaged pair by pair
_TESTED = ("CIDEr-D", "ROUGE-L")


@dataclass(frozen=True)
class Board:
    """Comparable results: one protocol on one set of references.

    Args:
        title: protocol and data.
        note: further properties that all results share.
        table: one row per captioner, the best first.
    """

    title: str
    note: str
    table: Table


def boards(results: Mapping[Path, dict[str, Any]], folder: Path, samples: int = 1000) -> list[Board]:
    """One board per protocol and fingerprint of the data, in the order of their names.

    Args:
        results: results by file.
        folder: folder that file names are relative to.
        samples: number of bootstrap samples for each p-value; 0 for no p-values.
    """
    groups: dict[tuple[str, ...], dict[Path, dict[str, Any]]] = {}
    for path, result in results.items():
        protocol = result["protocol"]
        key = (protocol["name"], protocol["hash"], result["data"]["fingerprint"])
        groups.setdefault(key, {})[path] = result
    return sorted((_board(members, folder, samples) for members in groups.values()), key=lambda board: board.title)


def _board(members: Mapping[Path, dict[str, Any]], folder: Path, samples: int) -> Board:
    rows, notes = group_by_captioner(members, folder)
    protocol = _protocol(members, folder)
    computed = {metric for result in members.values() for scores in result["scores"].values() for metric in scores}
    metrics = [metric for metric in dict.fromkeys((*HEADLINE, *protocol.metrics)) if metric in computed]
    ranked = [metric for metric in protocol.ranked if metric in computed]
    rows.sort(key=lambda row: (*(_sort_key(row.values(metric)) for metric in ranked), row.name))
    tested, p = _significance(rows, samples) if samples else (None, {})
    has_seeds = any(len(row.results) > 1 for row in rows)
    has_baselines = any("baseline_check" in result for row in rows for result in row.results)
    columns = ["model", *metrics]
    columns += [CONSTANT] if has_baselines else []
    columns += ["seeds"] if has_seeds else []
    columns += [f"p ({tested})"] if p else []
    cells = [
        [
            row.model,
            *(_cell(row, metric) for metric in metrics),
            *([_constant_caption(row)] if has_baselines else []),
            *([str(len(row.results))] if has_seeds else []),
            *([p.get(row.files[0], "best" if row is rows[0] else "-")] if p else []),
            _selection(row),
            next(iter(row.captions))[:8] if len(row.captions) == 1 else f"{len(row.captions)} sets",
            row.name,
        ]
        for row in rows
    ]
    if has_seeds:
        notes.insert(0, "mean ± standard deviation over seeds")
    if p:
        notes.insert(
            0,
            f"p: paired bootstrap over the pairs against the first row, two-sided, {tested}, scores of seeds averaged "
            "pair by pair, not corrected for the number of rows",
        )
    notes += _repeated(rows) + _warnings(rows)
    first = next(iter(members.values()))
    names = sorted({result["data"]["name"] for result in members.values() if result["data"]["name"]}) or [
        "unnamed data"
    ]
    note = (
        f"{_counts(first, metrics)}; protocol {first['protocol']['hash']}, data {first['data']['fingerprint']}; x100"
        f"{'; ranked by ' * bool(ranked)}{', '.join(ranked)}"
    )
    table = Table([*columns, "selected on", "captions", "file"], cells, notes=notes)
    return Board(f"{plain(', '.join(names))}: {protocol.name}", note, table)


def _constant_caption(row: LeaderboardRow) -> str:
    """CIDEr-D of a constant caption on the same pairs, the mean over seeds."""
    overs = [result.get("baseline_check", {}).get("over", {}).get(CONSTANT) for result in row.results]
    scores = [over["first"] for over in overs if over]
    return f"{fmean(scores):.1f}" if scores else "-"


def _warnings(rows: Iterable[LeaderboardRow]) -> list[str]:
    """Warnings of baseline checks."""
    checks = [(row.model, result.get("baseline_check", {})) for row in rows for result in row.results]
    return list(dict.fromkeys(f"{model}: {check['warning']}" for model, check in checks if check.get("warning")))


def _protocol(members: Mapping[Path, Mapping[str, Any]], folder: Path) -> Protocol:
    """The protocol of a board, which determines columns and ranking."""
    path, result = next(iter(members.items()))
    name = result["protocol"]["name"]
    if name not in PROTOCOLS:
        raise DataError(
            f"{relative_name(path, folder)} is scored under {name!r}, which is not a protocol of this version "
            "(`lightning-idc list protocols`); score its captions again, or remove the file from the folder"
        )
    return PROTOCOLS[name]


def _sort_key(values: Sequence[float]) -> float:
    """Sort key of a row: higher scores first, and rows without a score last."""
    return -fmean(values) if values else float("inf")


def _counts(result: Mapping[str, Any], metrics: Sequence[str]) -> str:
    """Numbers of pairs and references of the headline, and of pairs in other parts with columns."""
    counts, headline = result["counts"], result["headline"]
    others = dict.fromkeys(part_of(result, metric) for metric in metrics)
    return "; ".join(
        [
            f"{counts[headline]['pairs']} pairs, {counts[headline]['references']} references",
            *(f"{plain(part)}: {counts[part]['pairs']} pairs" for part in others if part not in (None, headline)),
        ]
    )


def _selection(row: LeaderboardRow) -> str:
    if row.results[0]["protocol"]["selection"] == "test":
        return "TEST"
    return row.results[0]["selection"] or "?"


def _repeated(rows: Sequence[LeaderboardRow]) -> list[str]:
    """Notes on rows with identical captions: usually one captioner that was tested twice."""
    rows_of_captions: dict[str, list[str]] = {}
    for row in rows:
        for captions in row.captions:
            rows_of_captions.setdefault(captions, []).append(row.name)
    return [f"the same captions: {', '.join(names)}" for names in rows_of_captions.values() if len(names) > 1]


def _cell(row: LeaderboardRow, metric: str) -> str:
    values = row.values(metric)
    if not values:
        return "-"
    if len(values) > 1:
        return f"{fmean(values):.1f} ± {stdev(values):.1f}"
    interval = row.results[0]["intervals"].get(metric)
    if not interval or None in interval:
        return f"{values[0]:.1f}"
    return f"{values[0]:.1f} ({interval[0]:.1f} to {interval[1]:.1f})"


def _significance(rows: Sequence[LeaderboardRow], samples: int) -> tuple[str | None, dict[Path, str]]:
    """The metric, and the p-value of each row against the first, by first file, if both have captions."""
    ranked = next((metric for metric in _TESTED if all(row.values(metric) for row in rows)), None)
    if ranked is None or len(rows) < 2:
        return None, {}
    best = _pair_scores(rows[0], ranked)
    p_of_rows = {}
    if best is None or best.pairs < 2:
        return None, {}
    for row in rows[1:]:
        scores = _pair_scores(row, ranked)
        if scores is not None:
            p_of_rows[row.files[0]] = p_text(compare(best, scores, samples)[ranked].p)
    return ranked, p_of_rows


def _pair_scores(row: LeaderboardRow, metric: str) -> Scores | None:
    """Scores of each pair by id, averaged over seeds; None if captions or references do not match the results."""
    seed_parts = []
    for path, result in zip(row.files, row.results, strict=True):
        captions_file = path.with_name(PREDICTIONS)
        if path.name != METRICS or not captions_file.is_file():
            return None
        try:
            predictions = read_predictions(captions_file)
            # files may list the pairs of a data set in different orders
            references = sorted(predictions.references, key=lambda reference: reference.id)
            captions = {reference.id: predictions.captions[reference.id] for reference in references}
            if digest(list(map(list, captions.items()))) != result["predictions"]["digest"]:
                return None
            protocol = protocol_named(result["protocol"]["name"])
            if protocol.hash != result["protocol"]["hash"]:
                return None
            if fingerprint(protocol, references) != result["data"]["fingerprint"]:
                return None
            parts = evaluate(protocol, captions, references, [metric])
        except IDCError:
            return None  # the protocol needs further files, or the captions have changed
        seed_parts.append(parts[result["headline"]])
    mean = np.mean([scores.per_pair[metric] for scores in seed_parts], axis=0)
    return replace(seed_parts[0], values={metric: float(mean.mean())}, per_pair={metric: mean}, statistics={})


def as_markdown(boards: Iterable[Board]) -> str:
    """The boards as Markdown."""
    lines = ["# Leaderboard", ""]
    for board in boards:
        title = Table([board.title], []).markdown().splitlines()[0][2:-2]
        lines += [f"## {title}", "", markdown(board.note), "", board.table.markdown(), ""]
        lines += [*(f"- {markdown(note)}" for note in board.table.notes), *[""] * bool(board.table.notes)]
    return "\n".join(lines)


def as_latex(boards: Iterable[Board]) -> str:
    """The boards as LaTeX tables for the package booktabs, without the columns on provenance."""
    parts = []
    for board in boards:
        num_columns = len(board.table.columns) - 3
        table = replace(
            board.table,
            columns=board.table.columns[:num_columns],
            rows=[row[:num_columns] for row in board.table.rows],
        )
        comments = [board.title, board.note, *board.table.notes]
        parts.append("\n".join([*(f"% {plain(line)}" for line in comments), table.latex(), ""]))
    return "\n".join(parts)


def write_html(target: Path, boards: Sequence[Board]) -> None:
    """Write the boards as one self-contained HTML page."""
    write_page(target, "leaderboard.html", "Leaderboard", boards=boards)
