"""Registration: the first image of a pair moved, turned and scaled by a little until it lies on the second one."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

POOL = 4
"""Pixels along each side of what the motion is estimated from."""
REACH = 4
"""Pools by which the images may be apart, either way: 16 pixels."""
STEPS = 3
"""Gauss-Newton steps after that; on boards of DeepPCB further ones change nothing."""
LEAST_GAIN = 0.2
"""Share of the squared difference between the images that must vanish for the first one to be moved."""
OUTLIER = 0.5
"""Brightness, of 1, from which on a difference is taken for a change and not for motion."""


@torch.no_grad()
def registered(images: Tensor) -> Tensor:
    """Pairs whose first image is warped onto the second one, by an affine motion; the second one is never touched.

    Motion is the translation that correlates best, refined by least squares over all pixels that differ little (Lucas
    and Kanade). What the warp brings in from outside of the first image shows no change: it is taken from the second
    one. Pairs of which less than ``LEAST_GAIN`` of the squared difference would vanish stay as they are.

    Args:
        images: uint8 ``(B, 2, C, H, W)``.

    Returns:
        The same, uint8 ``(B, 2, C, H, W)``.

    Example:
        >>> after = torch.zeros(3, 64, 64, dtype=torch.uint8)
        >>> after[:, 20:44, 24:40] = 255
        >>> pair = torch.stack([after.roll((3, -5), (1, 2)), after])[None]
        >>> [round(float((before.float() - after).abs().mean())) for before in (pair[0, 0], registered(pair)[0, 0])]
        [19, 1]
    """
    if min(images.shape[-2:]) < 4 * POOL:
        return images
    with torch.autocast(images.device.type, enabled=False):
        before, after = images.float().unbind(1)
        motion, gain = _motion(before.amax(1) / 255, after.amax(1) / 255)
        places = _places(motion, _grid(before))
        outside = (places.abs() > 1).any(-1)[:, None]
        warped = F.grid_sample(before, places, padding_mode="border", align_corners=False)
        warped = torch.where(outside, after, warped).round()
        moved = torch.where((gain > LEAST_GAIN)[:, None, None, None], warped, before)
        return torch.stack([moved.to(torch.uint8), images[:, 1]], 1)


def _motion(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Where in the first image each place of the second one is, and the share of the difference that this explains.

    Args:
        before: brightness ``(B, H, W)``.
        after: the same.

    Returns:
        Constant, x and y of the offset ``(B, 2, 3)``, of sides from -1 to 1; and the share ``(B,)``.
    """
    before, after = (F.avg_pool2d(image[:, None], POOL) for image in (before, after))
    translation = _translation(before[:, 0], after[:, 0])[..., None]
    motion = F.pad(translation, (0, 2))
    # edges as wide as a step can be
    before, after = (F.avg_pool2d(image, 3, 1, 1, count_include_pad=False) for image in (before, after))
    height, width = after.shape[-2:]
    grid, best, gain = _grid(after), motion, after.new_full(after.shape[:1], -torch.inf)
    x, y = grid.unbind(-1)
    still = (after - before)[:, 0].square()
    for step in range(STEPS + 1):
        places = _places(motion, grid)
        inside = (places.abs() <= 1).all(-1).to(after.dtype)
        seen = F.grid_sample(before, places, padding_mode="border", align_corners=False)
        rest = (after - seen)[:, 0] * inside
        # of the whole difference: nothing is gained by pushing a change out of sight
        found = (still * inside - rest.square()).sum((1, 2)) / still.sum((1, 2)).clamp(min=1e-9)
        best = torch.where((found > gain)[:, None, None], motion, best)
        gain = torch.maximum(found, gain)
        if step < STEPS:
            across = F.pad(seen[..., 2:] - seen[..., :-2], (1, 1))[:, 0] * width / 4
            down = F.pad(seen[..., 2:, :] - seen[..., :-2, :], (0, 0, 1, 1))[:, 0] * height / 4
            slopes = torch.stack([across, across * x, across * y, down, down * x, down * y], -1).flatten(1, 2)
            kept = slopes * (rest.abs() < OUTLIER).flatten(1)[..., None]
            step_by = _solved(kept.mT @ slopes, (kept.mT @ rest.flatten(1)[..., None])[..., 0])
            motion = motion + step_by.unflatten(1, (2, 3))
    return best, gain


def _translation(before: Tensor, after: Tensor) -> Tensor:
    """The translation of pools ``(B, h, w)`` that correlates best, x and y ``(B, 2)``, of sides from -1 to 1."""
    height, width = after.shape[1:]
    reach = min(REACH, height // 4, width // 4)
    before, after = (image - image.mean((1, 2), keepdim=True) for image in (before, after))
    shifted = F.pad(before, [reach] * 4).unfold(1, height, 1).unfold(2, width, 1)
    match = torch.einsum("bijhw,bhw->bij", shifted, after).flatten(1)
    side, still = 2 * reach + 1, match.shape[1] // 2
    found = torch.where(match.amax(1) > match[:, still], match.argmax(1), still)  # of equal ones, no motion
    return torch.stack([(found % side - reach) * 2 / width, (found // side - reach) * 2 / height], 1)


def _solved(matrix: Tensor, vector: Tensor) -> Tensor:
    """Solutions ``(B, N)`` of symmetric equations ``(B, N, N)``, ``(B, N)`` by elimination, which ONNX can say, too.

    What the images do not determine, such as motion along parallel lines, is kept near zero.
    """
    size = vector.shape[1]
    strength = matrix.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * 1e-3 + 1e-6
    rows = torch.cat([matrix + strength * torch.eye(size, device=matrix.device), vector[..., None]], 2)
    for pivot in range(size):
        row = rows[:, pivot] / rows[:, pivot, pivot, None]
        rows = rows - rows[:, :, pivot, None] * row[:, None]
        rows = torch.cat([rows[:, :pivot], row[:, None], rows[:, pivot + 1 :]], 1)
    return rows[..., -1]


def _grid(images: Tensor) -> Tensor:
    """x and y of pixel centres of images ``(..., H, W)``, ``(H, W, 2)``, from -1 to 1."""
    y, x = (
        (torch.arange(side, device=images.device) + 0.5) * 2 / side - 1 for side in (images.shape[-2], images.shape[-1])
    )
    return torch.stack([x.expand(images.shape[-2], -1), y[:, None].expand(-1, images.shape[-1])], -1)


def _places(motion: Tensor, grid: Tensor) -> Tensor:
    """Where each pixel of a grid ``(H, W, 2)`` comes from, ``(B, H, W, 2)``."""
    return grid + motion[:, None, None, :, 0] + grid @ motion[:, None, :, 1:].mT
