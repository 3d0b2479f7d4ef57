"""Learned relative position bias, and its initialisation."""

from __future__ import annotations

import pytest
import torch

from lightning_idc.nn.relative_position import RelativePositionBias


@pytest.mark.parametrize("groups", [1, 2])
def test_bias_depends_on_offset_and_groups_only(groups: int) -> None:
    bias = RelativePositionBias(heads=2, grid=(3, 4), groups=groups)
    torch.nn.init.normal_(bias.table)
    table = bias()
    cells = [(g, y, x) for g in range(groups) for y in range(3) for x in range(4)]
    assert table.shape == (2, len(cells), len(cells))
    seen: dict[tuple[int, ...], torch.Tensor] = {}
    for i, (g, y, x) in enumerate(cells):
        for j, (h, v, u) in enumerate(cells):
            value = seen.setdefault((g, h, y - v, x - u), table[:, i, j])
            assert torch.equal(value, table[:, i, j])
    assert len({tuple(value.tolist()) for value in seen.values()}) == len(seen) == groups**2 * 5 * 7


def test_heads_are_initialised_with_directions() -> None:
    bias = RelativePositionBias(heads=4, grid=(5, 7))()
    middle = 2 * 7 + 3
    right, below, left, above = middle + 1, middle + 7, middle - 1, middle - 7
    assert bias[:, middle].argmax(1).tolist() == [right, below, left, above]
    assert bias[0, middle, right] > bias[0, middle, right + 1] > bias[0, middle, left]


def test_every_other_head_is_initialised_with_the_same_cell() -> None:
    bias = RelativePositionBias(heads=4, grid=(5, 7), groups=3)().view(4, 3, 35, 3, 35)
    middle = 2 * 7 + 3
    right, left = middle + 1, middle - 1
    for group, other in ((0, 0), (0, 2), (1, 0), (2, 1)):
        bias_to_other = bias[:, group, middle, other]
        assert bias_to_other[::2].argmax(1).tolist() == [right, left]
        largest = bias_to_other[1::2].max(1)
        if group != other:
            assert largest.indices.tolist() == [middle, middle]
        assert (largest.values > 0).all() == (group != other)
