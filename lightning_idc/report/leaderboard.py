"""A leaderboard of results: one table per data and protocol, since only such numbers compare."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.core.text import plain
from lightning_idc.errors import PairError
from lightning_idc.metrics.results import read_result
from lightning_idc.report.table import HEADLINE, METRICS

_RANKED = ("CIDEr-D", "ROUGE-L", "METEOR", "BLEU-4")
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:70em;margin:2em auto;padding:0 1em}"
    "table{border-collapse:collapse;margin:.5em 0 2em}th,td{padding:.2em .8em;text-align:right;"
    "border-bottom:1px solid #8884}th:first-child,td:first-child{text-align:left}small{opacity:.7}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"
)


@dataclass(frozen=True)
class Board:
    """Results that compare: of one protocol on one set of references.

    Args:
        title: protocol and data.
        note: what else they share.
        columns: of the table.
        rows: cells of each result, the best first.
    """

    title: str
    note: str
    columns: list[str]
    rows: list[list[str]]


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """Results of a folder by file name; other JSON files are passed over.

    Raises:
        PairError: there is none, or one is damaged.
    """
    if not folder.is_dir():
        raise PairError(f"there is no folder {folder}")
    found = {path.name: result for path in sorted(folder.glob("*.json")) if (result := read_result(path)) is not None}
    if not found:
        raise PairError(
            f"{folder} holds no results; `lightning-idc score ... --out FILE` and ShowResults (result.json) write them"
        )
    return found


def boards(results: dict[str, dict[str, Any]]) -> list[Board]:
    """One board per protocol and fingerprint of the data, in the order of their names."""
    groups: dict[tuple[str, ...], list[tuple[str, dict[str, Any]]]] = {}
    for name, result in results.items():
        protocol, data = result["protocol"], result["data"]
        key = (data["name"] or "unnamed data", protocol["name"], protocol["hash"], data["fingerprint"])
        groups.setdefault(key, []).append((name, result))
    return [_board(key, members) for key, members in sorted(groups.items())]


def _board(key: tuple[str, ...], members: Sequence[tuple[str, dict[str, Any]]]) -> Board:
    data, protocol, hash, fingerprint = key
    scores = [result["scores"][result["headline"]] for _, result in members]
    shown = [metric for metric in METRICS if metric in HEADLINE and any(metric in of_one for of_one in scores)]
    ranked = next((metric for metric in _RANKED if any(metric in of_one for of_one in scores)), None)

    def rank(member: tuple[str, dict[str, Any]]) -> tuple[float, str]:
        value = member[1]["scores"][member[1]["headline"]].get(ranked)
        return (float("inf") if value is None else -value, member[0])

    rows = []
    for name, result in sorted(members, key=rank):
        of_one = result["scores"][result["headline"]]
        cells = [_cell(of_one.get(metric), result["intervals"].get(metric)) for metric in shown]
        chosen = "TEST" if result["protocol"]["selection"] == "test" else result["selection"] or "?"
        said = result["predictions"]["digest"][:8]
        rows.append([plain(result["model"] or Path(name).stem), *cells, chosen, said, name])
    counts = members[0][1]["counts"][members[0][1]["headline"]]
    note = f"{counts['pairs']} pairs, {counts['references']} references; protocol {hash}, data {fingerprint}; x100"
    columns = ["model", *shown, "selected on", "captions", "file"]
    return Board(f"{plain(data)}: {plain(protocol)}", note, columns, rows)


def _cell(score: float | None, interval: Sequence[float] | None) -> str:
    if score is None:
        return "-"
    if not interval or None in interval:
        return f"{score:.1f}"
    return f"{score:.1f} ({interval[0]:.1f} to {interval[1]:.1f})"


def as_markdown(found: Iterable[Board]) -> str:
    """The boards as Markdown."""
    lines = ["# Leaderboard", ""]
    for board in found:
        lines += [f"## {_escaped(board.title)}", "", board.note, ""]
        lines += [_row(board.columns), _row(["---", *["---:"] * (len(board.columns) - 1)])]
        lines += [*(_row(row) for row in board.rows), ""]
    return "\n".join(lines)


def as_html(found: Iterable[Board]) -> str:
    """The boards as one page that needs nothing else."""
    parts = []
    for board in found:
        head = "".join(f"<th>{html.escape(column)}</th>" for column in board.columns)
        rows = ["".join(f"<td>{html.escape(cell)}</td>" for cell in row) for row in board.rows]
        body = "".join(f"<tr>{row}</tr>" for row in rows)
        parts.append(
            f"<h2>{html.escape(board.title)}</h2><small>{html.escape(board.note)}</small>"
            f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )
    policy = "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
    head = f'<meta charset="utf-8">{policy}<title>Leaderboard</title><style>{_STYLE}</style>'
    body = f"<h1>Leaderboard</h1>{''.join(parts)}"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(_escaped(cell) for cell in cells) + " |"


def _escaped(text: str) -> str:
    # Markdown lets HTML through
    return html.escape(text, quote=False).replace("|", "\\|")
