"""Registration of pairs. Oracles: known motions, and linear systems solved in float64."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from lightning_idc.nn.differencing import DifferenceCNN
from lightning_idc.nn.registration import _solve, registered


def board(seed: int = 0, side: int = 192) -> torch.Tensor:
    """Draw black traces and pads on white, uint8 ``(3, side, side)``."""
    generator = torch.Generator().manual_seed(seed)
    image = torch.full((side, side), 255, dtype=torch.uint8)
    for index in range(40):
        y, x, length, width = (int(torch.randint(0, high, (), generator=generator)) for high in (side, side, 80, 9))
        size_y, size_x = (length + 8, width + 4) if index % 2 else (width + 4, length + 8)
        image[y : y + size_y, x : x + size_x] = 0
    return image.expand(3, -1, -1).clone()


def rotate_and_scale(image: torch.Tensor, degrees: float, scale: float) -> torch.Tensor:
    angle = torch.deg2rad(torch.tensor(degrees))
    motion = torch.tensor([[angle.cos(), -angle.sin(), 0.0], [angle.sin(), angle.cos(), 0.0]]) * scale
    grid = F.affine_grid(motion[None], [1, *image.shape], align_corners=False)
    return F.grid_sample(image[None].float(), grid, padding_mode="border", align_corners=False)[0].round().byte()


def difference(pair: torch.Tensor) -> float:
    """Mean absolute difference, without a border of 16 pixels."""
    before, after = pair[..., 16:-16, 16:-16].float()
    return float((before - after).abs().mean())


@pytest.mark.parametrize(("down", "right"), [(3, -5), (-11, 0), (7, 14), (0, 1)])
def test_registers_translation(down: int, right: int) -> None:
    after = board()
    pair = torch.stack([after.roll((down, right), (1, 2)), after])
    aligned = registered(pair[None])[0]
    assert difference(pair) > 8 and difference(aligned) < 0.12 * difference(pair)
    assert torch.equal(aligned[1], after)


def test_registers_rotation_and_scale() -> None:
    after = board(1)
    pair = torch.stack([rotate_and_scale(after, 0.8, 1.006).roll((2, 4), (1, 2)), after])
    aligned = registered(pair[None])[0]
    assert difference(aligned) < 0.3 * difference(pair)


def test_registration_keeps_changes_and_hides_borders() -> None:
    before, after = board(2).roll((5, -6), (1, 2)), board(2)
    after[:, 90:98, 60:68] = 255 - after[:, 90:98, 60:68]
    aligned = registered(torch.stack([before, after])[None])[0].int()
    is_changed = (aligned[0] - aligned[1]).abs().amax(0) > 127
    assert int(is_changed[90:98, 60:68].sum()) == 64
    assert int(is_changed.sum()) < 80  # pixels from outside of the first image show no change


def test_aligned_and_textureless_pairs_are_unchanged() -> None:
    same = board(3)
    spotted = same.clone()
    spotted[:, 40:60, 40:60] = 120
    grey = torch.full((2, 3, 96, 96), 100, dtype=torch.uint8)
    marked = grey.clone()
    marked[1, :, 80:96, 2:20] = 240
    for pair in (torch.stack([same, same]), torch.stack([same, spotted]), grey, marked):
        assert torch.equal(registered(pair[None])[0], pair)
    small = torch.randint(0, 256, (1, 2, 3, 15, 40), dtype=torch.uint8)
    assert torch.equal(registered(small), small)


def test_registration_is_independent_of_batch_and_autocast() -> None:
    pairs = torch.stack([torch.stack([board(seed).roll((seed, -4), (1, 2)), board(seed)]) for seed in range(3)])
    together = registered(pairs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(registered(pairs), together)
    for pair, aligned in zip(pairs, together, strict=True):
        assert (registered(pair[None])[0].int() - aligned.int()).abs().max() <= 1


def test_solve_equals_lapack() -> None:
    root = torch.randn(4, 6, 9, generator=torch.Generator().manual_seed(0))
    matrix, vector = root @ root.mT, torch.randn(4, 6)
    ridge = matrix.diagonal(dim1=1, dim2=2).mean(1)[:, None, None] * 1e-3 + 1e-6
    exact = torch.linalg.solve((matrix + ridge * torch.eye(6)).double(), vector.double())
    torch.testing.assert_close(_solve(matrix, vector).double(), exact, rtol=1e-3, atol=1e-4)
    assert torch.equal(_solve(torch.zeros(1, 6, 6), torch.zeros(1, 6)), torch.zeros(1, 6))


def test_difference_cnn_sees_no_edges_of_shifted_boards() -> None:
    after = board(4)
    pair = torch.stack([after.roll((-4, 6), (1, 2)), after])[None]
    changes = DifferenceCNN().eval().normalised(pair)[0, 1:, 16:-16, 16:-16]
    assert float(changes.mean()) < 0.03 * float((pair[0, 0].float() - after.float()).abs().mean()) / 255
