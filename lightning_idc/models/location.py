"""locate: where the change is that a caption describes.

A cell of the image matters if the caption becomes less likely when both images agree in that cell:

1. :func:`locate` copies the cell of one image into the other, so that the cell no longer differs, and scores the
   caption again with :meth:`~lightning_idc.models.captioner.PairCaptioner.score`; cells that are equal already are
   skipped.
2. :func:`refine` multiplies the grid of scores by the difference of the pixels, which gives the map and the boxes.

For a captioner that counts changes (:meth:`~lightning_idc.models.captioner.PairCaptioner.changed_cells`),
:func:`locate_counts` reads the boxes from its counts instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.images.types import PairSample
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn.peaks import peaks

CELLS = 8
"""Number of cells per side."""
BOX_THRESHOLD = 0.5
"""Minimum value, relative to the maximum, of a cell that belongs to a box."""
_MAP_SIZE = 32
_BLUR = 13  # pixel differences are averaged over windows of 1 / 13 of a side

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class ChangeLocation:
    """Location of the change that a caption describes.

    Args:
        map: importance of each cell, at most ``(32, 32)``, with a maximum of 1; all 0 if the caption depends on no
            cell.
        boxes: x1 y1 x2 y2 as fractions of width and height, the most important one first.
        peak: x and y of the maximum, as fractions; None if the map is 0.
    """

    map: Tensor
    boxes: list[Box]
    peak: tuple[float, float] | None

    def in_full_image(self, window: Box) -> ChangeLocation:
        """The same location in larger images, of which the pair is a crop.

        Args:
            window: x1 y1 x2 y2 of the crop as fractions of the larger images.
        """
        left, top, right, bottom = window

        def to_full_image(x: float, y: float) -> tuple[float, float]:
            return left + x * (right - left), top + y * (bottom - top)

        rows, columns = (
            count / fraction for count, fraction in zip(self.map.shape, (bottom - top, right - left), strict=True)
        )
        sides = [columns * left, columns * (1 - right), rows * top, rows * (1 - bottom)]
        padded = F.pad(self.map, [round(side) for side in sides])
        size = [min(side, _MAP_SIZE) for side in padded.shape]
        return ChangeLocation(
            F.adaptive_max_pool2d(padded[None], size)[0],
            [(*to_full_image(x1, y1), *to_full_image(x2, y2)) for x1, y1, x2, y2 in self.boxes],
            None if self.peak is None else to_full_image(*self.peak),
        )


@torch.no_grad()
def locate(
    captioner: PairCaptioner, sample: PairSample, caption: str, cells: int = CELLS, batch_size: int = 32
) -> ChangeLocation:
    """Find the cells that a caption of a pair depends on.

    The score of a cell is the decrease of the log-probability of the caption when the cell of the second image is
    copied into the first, plus the decrease when it is copied the other way; increases count 0. For a captioner with
    ``changed_cells`` these are used instead.

    Args:
        captioner: any captioner.
        sample: the pair, as the captioner's ``input_spec`` prepares it.
        caption: its caption.
        cells: number of cells per side.
        batch_size: number of pairs that are scored together.
    """
    was_training = captioner.training
    captioner.eval()
    try:
        batch = captioner.collate([sample]).to(captioner.device)
        if (boxes := captioner.change_boxes(batch)) is not None:
            return locate_boxes(boxes[0], sample)
        counts = captioner.changed_cells(batch)
        if counts is not None:
            return locate_counts(counts[0].float().cpu())
        edges = [torch.linspace(0, length, cells + 1).round().int().tolist() for length in sample.before.shape[1:]]
        slices = [cell for cell in _cell_slices(edges) if not torch.equal(sample.before[cell], sample.after[cell])]
        edited = [replace(sample, captions=[])]
        for cell in slices:
            before, after = sample.before.clone(), sample.after.clone()
            before[cell], after[cell] = sample.after[cell], sample.before[cell]
            edited += [replace(edited[0], before=before), replace(edited[0], after=after)]
        scores = torch.cat(
            [
                _caption_scores(captioner, edited[start : start + batch_size], caption)
                for start in range(0, len(edited), batch_size)
            ]
        )
    finally:
        captioner.train(was_training)
    decrease = (scores[0] - scores[1:]).clamp(min=0).view(-1, 2).sum(1)
    grid = torch.zeros(cells, cells)
    for (_, rows, columns), value in zip(slices, decrease.tolist(), strict=True):
        grid[edges[0].index(rows.start), edges[1].index(columns.start)] = value
    return refine(grid, sample)


def locate_counts(cells: Tensor) -> ChangeLocation:
    """Location of the changes that a captioner counts: a box of 4 x 4 cells around each.

    Args:
        cells: probability that each cell has changed, ``(rows, columns)``.
    """
    rows, columns = cells.shape
    _, centres, means = peaks(cells[None])
    peak_cells = centres[means.argsort(descending=True, stable=True)].tolist()
    boxes = [
        (max(0, x - 2) / columns, max(0, y - 2) / rows, min(columns, x + 2) / columns, min(rows, y + 2) / rows)
        for y, x in peak_cells
    ]
    peak = (peak_cells[0][1] / columns, peak_cells[0][0] / rows) if peak_cells else None
    small_map = F.adaptive_max_pool2d(cells[None], (min(rows, _MAP_SIZE), min(columns, _MAP_SIZE)))[0]
    return ChangeLocation(small_map / small_map.max().clamp(min=1e-9) if boxes else torch.zeros(1, 1), boxes, peak)


def locate_boxes(boxes: Sequence[Sequence[float]], sample: PairSample) -> ChangeLocation:
    """Location of the boxes that a captioner predicts; the map is 1 in the cells that a box covers.

    Args:
        boxes: x1 y1 x2 y2 in pixels.
        sample: the pair.
    """
    height, width = sample.before.shape[1:]
    fractions: list[Box] = [(x1 / width, y1 / height, x2 / width, y2 / height) for x1, y1, x2, y2 in boxes]
    if not fractions:
        return ChangeLocation(torch.zeros(1, 1), [], None)
    cells = torch.zeros(_MAP_SIZE, _MAP_SIZE)
    for x1, y1, x2, y2 in fractions:
        left, top, right, bottom = (int(side * _MAP_SIZE) for side in (x1, y1, x2, y2))
        cells[top : max(bottom, top + 1), left : max(right, left + 1)] = 1
    x1, y1, x2, y2 = fractions[0]
    return ChangeLocation(cells, fractions, ((x1 + x2) / 2, (y1 + y2) / 2))


def refine(grid: Tensor, sample: PairSample) -> ChangeLocation:
    """Location in pixels: the square root of the interpolated cell scores times the local pixel difference.

    Args:
        grid: score of each cell, ``(rows, columns)``.
        sample: the pair.
    """
    height, width = sample.before.shape[1:]
    difference = (sample.after.float() - sample.before.float()).abs().amax(0)[None, None]
    kernel = [side // _BLUR | 1 for side in (height, width)]
    local_mean = F.avg_pool2d(difference, kernel, 1, [side // 2 for side in kernel])
    importance = (
        F.interpolate(grid[None, None], (height, width), mode="bilinear", align_corners=False).sqrt() * local_mean
    )
    if not bool(importance.any()):
        return ChangeLocation(torch.zeros(1, 1), [], None)
    importance /= importance.max()
    row, column = divmod(int(importance.argmax()), width)
    small_map = F.adaptive_max_pool2d(importance, (min(height, _MAP_SIZE), min(width, _MAP_SIZE)))[0, 0]
    return ChangeLocation(small_map, boxes_of(importance[0, 0]), ((column + 0.5) / width, (row + 0.5) / height))


def _cell_slices(edges: list[list[int]]) -> Iterator[tuple[slice, slice, slice]]:
    """Index of every cell in an image ``(C, H, W)``; cells of images smaller than the grid may be empty."""
    for top, bottom in zip(edges[0], edges[0][1:], strict=False):
        for left, right in zip(edges[1], edges[1][1:], strict=False):
            if top < bottom and left < right:
                yield slice(None), slice(top, bottom), slice(left, right)


def _caption_scores(captioner: PairCaptioner, samples: list[PairSample], caption: str) -> Tensor:
    """Log-probability of one caption for each pair, ``(B,)``."""
    batch = captioner.collate(samples).to(captioner.device)
    tokens = torch.tensor(captioner.tokenize([caption]), device=captioner.device).expand(len(samples), 1, -1)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[..., 0] = False
    return captioner.score(captioner.encode_repeated(batch), tokens, mask)[:, 0].float().cpu()


def boxes_of(grid: Tensor, threshold: float = BOX_THRESHOLD) -> list[Box]:
    """Boxes around connected cells of at least ``threshold``, as fractions of width and height, sorted by maximum.

    Example:
        >>> boxes_of(torch.tensor([[1.0, 0.0], [0.0, 0.2]]))
        [(0.0, 0.0, 0.5, 0.5)]
    """
    rows, columns = grid.shape
    remaining = {(int(row), int(column)) for row, column in (grid >= max(threshold, 1e-9)).nonzero().tolist()}
    scored_boxes: list[tuple[float, Box]] = []
    while remaining:
        group, frontier = set(), [remaining.pop()]
        while frontier:
            row, column = frontier.pop()
            group.add((row, column))
            neighbours = {(row + y, column + x) for y in (-1, 0, 1) for x in (-1, 0, 1)} & remaining
            remaining -= neighbours
            frontier += neighbours
        ys, xs = zip(*group, strict=True)
        box = (min(xs) / columns, min(ys) / rows, (max(xs) + 1) / columns, (max(ys) + 1) / rows)
        scored_boxes.append((max(float(grid[cell]) for cell in group), box))
    return [box for _, box in sorted(scored_boxes, key=lambda item: (-item[0], item[1]))]
