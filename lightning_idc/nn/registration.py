"""Registration: an affine warp of the first image of a pair onto the second one.

1. Translation of maximum correlation on pooled brightness (`_translation`).
2. Gauss-Newton steps of Lucas and Kanade from it, without pixels that differ by more than ``OUTLIER`` (`_motion`).
3. The warp is kept if it removes more than ``MIN_GAIN`` of the squared difference (`registered`).
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

POOL = 4
"""Side of the pooling windows on which the motion is estimated, in pixels."""
MAX_SHIFT = 4
"""Maximum translation, in pooling windows: 16 pixels."""
STEPS = 3
"""Number of Gauss-Newton steps; on DeepPCB further ones change nothing."""
MIN_GAIN = 0.2
"""Minimum fraction of the squared difference that a warp must remove to be applied."""
OUTLIER = 0.5
"""Minimum difference of brightness in [0, 1] of a change; smaller differences may be motion."""


@torch.no_grad()
def registered(images: Tensor) -> Tensor:
    """Warp the first image of each pair onto the second one by an affine motion; the second one is unchanged.

    The motion is the translation of maximum correlation, refined by least squares over all pixels with small
    differences (Lucas and Kanade). Pixels outside of the first image are copied from the second one, so that they show
    no change. A pair is unchanged if the warp removes less than ``MIN_GAIN`` of its squared difference.

    Args:
        images: uint8 ``(B, 2, C, H, W)``.

    Returns:
        Registered pairs, uint8 ``(B, 2, C, H, W)``.

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
        positions = _sampling_grid(motion, _grid(before))
        outside = (positions.abs() > 1).any(-1)[:, None]
        warped = F.grid_sample(before, positions, padding_mode="border", align_corners=False)
        warped = torch.where(outside, after, warped).round()
        aligned = torch.where((gain > MIN_GAIN)[:, None, None, None], warped, before)
        return torch.stack([aligned.to(torch.uint8), images[:, 1]], 1)


def _motion(before: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """Affine motion from the second image to the first, and the fraction of the difference that it removes.

    Args:
        before: brightness ``(B, H, W)``.
        after: brightness ``(B, H, W)``.

    Returns:
        Constant, x and y coefficients of the offset, ``(B, 2, 3)`` in coordinates from -1 to 1, and the fraction
        ``(B,)``.
    """
    before, after = (F.avg_pool2d(image[:, None], POOL) for image in (before, after))
    translation = _translation(before[:, 0], after[:, 0])[..., None]  # (B, 2, 1)
    motion = F.pad(translation, (0, 2))  # (B, 2, 3)
    # blur, so that edges are as wide as a step
    before, after = (F.avg_pool2d(image, 3, 1, 1, count_include_pad=False) for image in (before, after))
    height, width = after.shape[-2:]
    grid, best, gain = _grid(after), motion, after.new_full(after.shape[:1], -torch.inf)
    x, y = grid.unbind(-1)
    unaligned = (after - before)[:, 0].square()
    for step in range(STEPS + 1):
        positions = _sampling_grid(motion, grid)
        is_inside = (positions.abs() <= 1).all(-1).to(after.dtype)
        sampled = F.grid_sample(before, positions, padding_mode="border", align_corners=False)
        residual = (after - sampled)[:, 0] * is_inside
        # relative to the whole difference, so that moving a change out of the image is no gain
        new_gain = (unaligned * is_inside - residual.square()).sum((1, 2)) / unaligned.sum((1, 2)).clamp(min=1e-9)
        best = torch.where((new_gain > gain)[:, None, None], motion, best)
        gain = torch.maximum(new_gain, gain)
        if step < STEPS:
            dx = F.pad(sampled[..., 2:] - sampled[..., :-2], (1, 1))[:, 0] * width / 4  # (B, h, w)
            dy = F.pad(sampled[..., 2:, :] - sampled[..., :-2, :], (0, 0, 1, 1))[:, 0] * height / 4
            jacobian = torch.stack([dx, dx * x, dx * y, dy, dy * x, dy * y], -1).flatten(1, 2)  # (B, h w, 6)
            inliers = jacobian * (residual.abs() < OUTLIER).flatten(1)[..., None]
            update = _solve(inliers.mT @ jacobian, (inliers.mT @ residual.flatten(1)[..., None])[..., 0])
            motion = motion + update.unflatten(1, (2, 3))
    return best, gain


def _translation(before: Tensor, after: Tensor) -> Tensor:
    """Translation of maximum correlation of ``(B, h, w)``: x and y, ``(B, 2)`` in coordinates from -1 to 1."""
    height, width = after.shape[1:]
    max_shift = min(MAX_SHIFT, height // 4, width // 4)
    before, after = (image - image.mean((1, 2), keepdim=True) for image in (before, after))
    shifted = F.pad(before, [max_shift] * 4).unfold(1, height, 1).unfold(2, width, 1)  # (B, shifts, shifts, h, w)
    correlation = torch.einsum("bijhw,bhw->bij", shifted, after).flatten(1)
    num_shifts, zero_shift = 2 * max_shift + 1, correlation.shape[1] // 2
    # no motion if its correlation is equal
    best = torch.where(correlation.amax(1) > correlation[:, zero_shift], correlation.argmax(1), zero_shift)
    x, y = best % num_shifts - max_shift, best // num_shifts - max_shift
    return torch.stack([x * 2 / width, y * 2 / height], 1)


def _solve(matrix: Tensor, vector: Tensor) -> Tensor:
    """Solve symmetric linear systems ``(B, N, N)``, ``(B, N)`` by elimination, as ONNX has no solver; ``(B, N)``.

    A ridge keeps undetermined components, such as motion along parallel lines, near zero.
    """
    size = vector.shape[1]
    ridge = matrix.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * 1e-3 + 1e-6
    rows = torch.cat([matrix + ridge * torch.eye(size, device=matrix.device), vector[..., None]], 2)  # (B, N, N + 1)
    for pivot in range(size):
        row = rows[:, pivot] / rows[:, pivot, pivot, None]
        rows = rows - rows[:, :, pivot, None] * row[:, None]
        rows = torch.cat([rows[:, :pivot], row[:, None], rows[:, pivot + 1 :]], 1)
    return rows[..., -1]


def _grid(images: Tensor) -> Tensor:
    """Pixel centres x y of images ``(..., H, W)``, ``(H, W, 2)`` from -1 to 1."""
    y, x = (
        (torch.arange(side, device=images.device) + 0.5) * 2 / side - 1 for side in (images.shape[-2], images.shape[-1])
    )
    return torch.stack([x.expand(images.shape[-2], -1), y[:, None].expand(-1, images.shape[-1])], -1)


def _sampling_grid(motion: Tensor, grid: Tensor) -> Tensor:
    """Positions ``(B, H, W, 2)`` of the pixels of a grid ``(H, W, 2)`` after a motion ``(B, 2, 3)``."""
    return grid + motion[:, None, None, :, 0] + grid @ motion[:, None, :, 1:].mT
