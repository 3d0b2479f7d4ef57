"""Where: the cells that a caption depends on, for any captioner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc import PairCaptioner, PairFeatures, PairSample
from lightning_idc.core.vocabulary import Vocabulary
from lightning_idc.core.where import boxes_of, locate


class Differs(nn.Module):
    """Says a word the more surely, the more the images differ."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.sure = nn.Parameter(torch.zeros(words))
        self.sure.data[-1] = 1.0

    def encode(self, images: Tensor) -> PairFeatures:
        difference = (images[:, 1].float() - images[:, 0].float()).abs().mean((1, 2, 3))
        return PairFeatures(difference[:, None, None])

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        return (self.sure * features.memory)[:, None].expand(*tokens.shape, -1)


class DiffersCaptioner(PairCaptioner):
    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        return Differs(len(vocabulary))


def captioner(**options: Any) -> DiffersCaptioner:
    found = DiffersCaptioner(vocabulary=Vocabulary.build(["changed"]).words, max_length=2, **options)
    found.build()
    return found


def pair(size: int, *squares: tuple[int, int, int, int]) -> PairSample:
    """A square at x, y of a width differs by so many grey levels."""
    before = torch.randint(0, 100, (3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    for x, y, width, levels in squares:
        after[:, y : y + width, x : x + width] += levels
    return PairSample("pair", before, after)


def test_the_strongest_change_is_the_peak_and_every_change_has_a_box() -> None:
    model = captioner().train()
    found = locate(model, pair(40, (5, 30, 5, 60), (25, 5, 10, 120)), "changed", batch_size=7)
    assert model.training
    assert found.peak is not None and 25 < 40 * found.peak[0] < 35 and 5 < 40 * found.peak[1] < 15
    assert bool((found.map[1:3, 5:7] > 0.9).all()) and found.map[6, 1] > 0
    assert int((found.map > 0).sum()) == 5  # what is equal does not matter
    assert boxes_of(found.map, 0.1) == [(0.625, 0.125, 0.875, 0.375), (0.125, 0.75, 0.25, 0.875)]


def test_equal_images_have_no_place_and_small_ones_fewer_cells() -> None:
    nothing = locate(captioner(), pair(16), "changed")
    assert nothing.peak is None and nothing.boxes == [] and not bool(nothing.map.any())
    tiny = locate(captioner(), pair(5, (3, 3, 2, 90)), "changed")
    assert tiny.peak is not None and tiny.peak[0] > 0.5 and tiny.peak[1] > 0.5


def test_neighbouring_cells_share_a_box_also_at_their_corners() -> None:
    grid = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.8, 0.0, 0.9]])
    assert boxes_of(grid) == [(0.0, 0.0, 0.5, 1.0), (0.75, 0.5, 1.0, 1.0)]
