"""forest_plot: differences with their intervals as an SVG image, one line per comparison."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

_LABEL, _PLOT, _ROW, _MARGIN = 360, 340, 24, 12
"""Smallest width of the labels, width of the plot, height of a row, and margin, in pixels."""
_LETTER, _GAP = 6.5, 16
"""Width of a letter, more than the mean of usual fonts, and space between labels and plot."""
_DECIDED, _OPEN, _AXIS, _TEXT = "#1f6feb", "#8c959f", "#d0d7de", "#24292f"


def forest_plot(rows: Sequence[tuple[str, float, Sequence[float] | None, bool]]) -> str:
    """Draw differences as points with intervals around a line at 0.

    Args:
        rows: label, difference, interval (None for a single training), and whether the difference is decided; decided
            ones are blue and filled.
    """
    ends = [0.0, *(value for _, mean, interval, _ in rows for value in (mean, *(interval or ())))]
    low, high = min(ends), max(ends)
    left = max(_LABEL, _GAP + round(_LETTER * max((len(label) for label, *_ in rows), default=0)))

    def x(value: float) -> float:
        return round(left + _PLOT * (value - low) / (high - low or 1.0), 1)

    width, height = left + _PLOT + 2 * _MARGIN, _ROW * (len(rows) + 1) + 2 * _MARGIN
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'font-family="sans-serif" font-size="12" fill="{_TEXT}">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
        f'<line x1="{x(0)}" x2="{x(0)}" y1="{_MARGIN}" y2="{_MARGIN + _ROW * len(rows)}" stroke="{_AXIS}"/>',
    ]
    for number, (label, mean, interval, is_decided) in enumerate(rows):
        y = _MARGIN + _ROW * number + _ROW // 2
        color = _DECIDED if is_decided else _OPEN
        lines.append(f'<text x="{left - _GAP}" y="{y + 4}" text-anchor="end">{escape(label)}</text>')
        if interval:
            lines.append(
                f'<line x1="{x(interval[0])}" x2="{x(interval[1])}" y1="{y}" y2="{y}" '
                f'stroke="{color}" stroke-width="2"/>'
            )
        fill = color if is_decided else "white"
        lines.append(f'<circle cx="{x(mean)}" cy="{y}" r="4" fill="{fill}" stroke="{color}" stroke-width="2"/>')
    bottom = _MARGIN + _ROW * len(rows) + _ROW // 2 + 4
    ticks = sorted({round(low), 0, round(high)})
    lines += [f'<text x="{x(tick)}" y="{bottom}" text-anchor="middle">{tick:+d}</text>' for tick in ticks if tick]
    lines += [f'<text x="{x(0)}" y="{bottom}" text-anchor="middle">0</text>', "</svg>"]
    return "\n".join(lines) + "\n"
