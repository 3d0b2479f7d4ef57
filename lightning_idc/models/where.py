"""Where a change lies: a cell matters if the caption loses its reason once both images agree there.

One image's cell is put into the other, so that nothing differs in it any more, and the caption is scored again; this
asks nothing of a captioner but :meth:`~lightning_idc.models.captioner.PairCaptioner.score`. Cells that are equal
already cost nothing. Within the cells that matter, the pixels that differ most say where exactly. A captioner that
counts changes (:meth:`~lightning_idc.models.captioner.PairCaptioner.changed_cells`) knows their places already.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_idc.images.types import PairSample
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.nn.peaks import peaks

CELLS = 8
KEPT = 0.5
"""Places belong to a box that matter at least so much, as a share of the one that matters most."""
_SHOWN = 32
_BLUR = 13  # differences of pixels are averaged over one part in so many of a side

Box = tuple[float, float, float, float]


@dataclass(frozen=True, slots=True)
class Where:
    """Where the change lies that a caption speaks of.

    Args:
        map: how much each place matters, at most ``(32, 32)``, 1 for the one that matters most; all 0 where none does.
        boxes: around places that matter, x1 y1 x2 y2 as shares of width and height, the most important one first.
        peak: x and y of the place that matters most, as shares; None where none does.
    """

    map: Tensor
    boxes: list[Box]
    peak: tuple[float, float] | None

    def within(self, window: Box) -> Where:
        """The same in larger images, of which the pair is a window.

        Args:
            window: x1 y1 x2 y2 as shares of the larger images.
        """
        left, top, right, bottom = window

        def moved(x: float, y: float) -> tuple[float, float]:
            return left + x * (right - left), top + y * (bottom - top)

        rows, columns = (
            count / share for count, share in zip(self.map.shape, (bottom - top, right - left), strict=True)
        )
        sides = [columns * left, columns * (1 - right), rows * top, rows * (1 - bottom)]
        whole = F.pad(self.map, [round(side) for side in sides])
        shown = [min(side, _SHOWN) for side in whole.shape]
        return Where(
            F.adaptive_max_pool2d(whole[None], shown)[0],
            [(*moved(x1, y1), *moved(x2, y2)) for x1, y1, x2, y2 in self.boxes],
            None if self.peak is None else moved(*self.peak),
        )


@torch.no_grad()
def locate(
    captioner: PairCaptioner, sample: PairSample, caption: str, cells: int = CELLS, batch_size: int = 32
) -> Where:
    """Find the cells that a caption of a pair depends on.

    The score of a cell is what the caption's log-probability loses when the cell of the second image is put into the
    first, plus what it loses the other way round, each counted where it is a loss. A captioner that knows itself which
    cells have changed is asked instead.

    Args:
        captioner: any.
        sample: the pair, as the captioner's ``input_spec`` prepares it.
        caption: what was said of it.
        cells: per side.
        batch_size: pairs that are scored at once.
    """
    was_training = captioner.training
    captioner.eval()
    try:
        known = captioner.changed_cells(captioner.collate([sample]).to(captioner.device))
        if known is not None:
            return counted(known[0].float().cpu())
        edges = [torch.linspace(0, length, cells + 1).round().int().tolist() for length in sample.before.shape[1:]]
        places = [place for place in _places(edges) if not torch.equal(sample.before[place], sample.after[place])]
        edited = [replace(sample, captions=[])]
        for place in places:
            before, after = sample.before.clone(), sample.after.clone()
            before[place], after[place] = sample.after[place], sample.before[place]
            edited += [replace(edited[0], before=before), replace(edited[0], after=after)]
        scores = torch.cat(
            [_scores(captioner, edited[at : at + batch_size], caption) for at in range(0, len(edited), batch_size)]
        )
    finally:
        captioner.train(was_training)
    lost = (scores[0] - scores[1:]).clamp(min=0).view(-1, 2).sum(1)
    grid = torch.zeros(cells, cells)
    for (_, rows, columns), value in zip(places, lost.tolist(), strict=True):
        grid[edges[0].index(rows.start), edges[1].index(columns.start)] = value
    return placed(grid, sample)


def counted(cells: Tensor) -> Where:
    """Where the changes lie that a captioner counts: a box of four cells a side around each.

    Args:
        cells: probability that each cell has changed, ``(rows, columns)``.
    """
    rows, columns = cells.shape
    _, centres, means = peaks(cells[None])
    places = centres[means.argsort(descending=True, stable=True)].tolist()
    boxes = [
        (max(0, x - 2) / columns, max(0, y - 2) / rows, min(columns, x + 2) / columns, min(rows, y + 2) / rows)
        for y, x in places
    ]
    centre = (places[0][1] / columns, places[0][0] / rows) if places else None
    shown = F.adaptive_max_pool2d(cells[None], (min(rows, _SHOWN), min(columns, _SHOWN)))[0]
    return Where(shown / shown.max().clamp(min=1e-9) if boxes else torch.zeros(1, 1), boxes, centre)


def placed(grid: Tensor, sample: PairSample) -> Where:
    """Where exactly: the square root of how much cells matter, times how much the pixels around a place differ.

    Args:
        grid: how much each cell matters, ``(rows, columns)``.
        sample: the pair.
    """
    height, width = sample.before.shape[1:]
    difference = (sample.after.float() - sample.before.float()).abs().amax(0)[None, None]
    kernel = [side // _BLUR | 1 for side in (height, width)]
    near = F.avg_pool2d(difference, kernel, 1, [side // 2 for side in kernel])
    fine = F.interpolate(grid[None, None], (height, width), mode="bilinear", align_corners=False).sqrt() * near
    if not bool(fine.any()):
        return Where(torch.zeros(1, 1), [], None)
    fine /= fine.max()
    row, column = divmod(int(fine.argmax()), width)
    shown = F.adaptive_max_pool2d(fine, (min(height, _SHOWN), min(width, _SHOWN)))[0, 0]
    return Where(shown, boxes_of(fine[0, 0]), ((column + 0.5) / width, (row + 0.5) / height))


def _places(edges: list[list[int]]) -> Iterator[tuple[slice, slice, slice]]:
    """Index of every cell in an image ``(C, H, W)``; cells of images smaller than the grid may be empty."""
    for top, bottom in zip(edges[0], edges[0][1:], strict=False):
        for left, right in zip(edges[1], edges[1][1:], strict=False):
            if top < bottom and left < right:
                yield slice(None), slice(top, bottom), slice(left, right)


def _scores(captioner: PairCaptioner, samples: list[PairSample], caption: str) -> Tensor:
    """Log-probability of one caption for each pair, ``(B,)``."""
    batch = captioner.collate(samples).to(captioner.device)
    tokens = torch.tensor(captioner.tokenize([caption]), device=captioner.device).expand(len(samples), 1, -1)
    mask = torch.ones_like(tokens, dtype=torch.bool)
    mask[..., 0] = False
    return captioner.score(captioner.encode_repeated(batch), tokens, mask)[:, 0].float().cpu()


def boxes_of(grid: Tensor, kept: float = KEPT) -> list[Box]:
    """Boxes around neighbouring cells of at least ``kept``, by their greatest value, as shares of width and height.

    Example:
        >>> boxes_of(torch.tensor([[1.0, 0.0], [0.0, 0.2]]))
        [(0.0, 0.0, 0.5, 0.5)]
    """
    rows, columns = grid.shape
    left = {(int(row), int(column)) for row, column in (grid >= max(kept, 1e-9)).nonzero().tolist()}
    found: list[tuple[float, Box]] = []
    while left:
        group, front = set(), [left.pop()]
        while front:
            row, column = front.pop()
            group.add((row, column))
            near = {(row + y, column + x) for y in (-1, 0, 1) for x in (-1, 0, 1)} & left
            left -= near
            front += near
        ys, xs = zip(*group, strict=True)
        box = (min(xs) / columns, min(ys) / rows, (max(xs) + 1) / columns, (max(ys) + 1) / rows)
        found.append((max(float(grid[place]) for place in group), box))
    return [box for _, box in sorted(found, key=lambda item: (-item[0], item[1]))]
