"""Location of a change: the cells that a caption depends on, for any captioner."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_idc import PairCaptioner, PairFeatures, PairSample
from lightning_idc.models.location import boxes_of, locate
from lightning_idc.nn.vocabulary import Vocabulary


class Differs(nn.Module):
    """Returns one word and then the end token, with a confidence that grows with the difference of the images."""

    def __init__(self, words: int, end: int) -> None:
        super().__init__()
        self.sure = nn.Parameter(torch.zeros(2, words))
        self.sure.data[0, -1] = self.sure.data[1, end] = 1.0

    def encode(self, images: Tensor) -> PairFeatures:
        difference = (images[:, 1].float() - images[:, 0].float()).abs().mean((1, 2, 3))
        return PairFeatures(difference[:, None, None])

    def logits(self, features: PairFeatures, tokens: Tensor) -> Tensor:
        return (self.sure * features.memory)[:, None]


class DiffersCaptioner(PairCaptioner):
    def build_net(self, vocabulary: Vocabulary) -> nn.Module:
        return Differs(len(vocabulary), vocabulary.special.eos)


def captioner(**options: Any) -> DiffersCaptioner:
    result = DiffersCaptioner(vocabulary=Vocabulary.build(["changed"]).words, max_length=2, **options)
    result.build()
    return result


def pair(size: int, *squares: tuple[int, int, int, int]) -> PairSample:
    """Return a pair with squares (x, y, width, levels) that differ by a number of grey levels."""
    before = torch.randint(0, 100, (3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    after = before.clone()
    for x, y, width, levels in squares:
        after[:, y : y + width, x : x + width] += levels
    return PairSample("pair", before, after)


def test_the_strongest_change_is_the_peak_and_every_change_has_a_box() -> None:
    model = captioner().train()
    result = locate(model, pair(40, (5, 30, 5, 60), (25, 5, 10, 120)), "changed", batch_size=7)
    assert model.training
    assert result.peak is not None and 25 <= 40 * result.peak[0] <= 35 and 5 <= 40 * result.peak[1] <= 15
    x1, y1, x2, y2 = (40 * value for value in result.boxes[0])
    assert 24 <= x1 <= 27 and 4 <= y1 <= 7 and 33 <= x2 <= 36 and 13 <= y2 <= 16
    weaker = result.map[int(32 * 32 / 40), int(7 * 32 / 40)]
    assert 0 < weaker < 1
    assert not bool(result.map[:, :3].any()) and not bool(result.map[:3].any())  # unchanged cells have no effect
    assert len(boxes_of(result.map, float(weaker) / 2)) == 2


def test_equal_images_have_no_location_and_small_ones_fewer_cells() -> None:
    nothing = locate(captioner(), pair(16), "changed")
    assert nothing.peak is None and nothing.boxes == [] and not bool(nothing.map.any())
    tiny = locate(captioner(), pair(5, (3, 3, 2, 90)), "changed")
    assert tiny.peak is not None and tiny.peak[0] > 0.5 and tiny.peak[1] > 0.5


def test_neighbouring_cells_share_a_box_also_at_their_corners() -> None:
    grid = torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.0, 0.8, 0.0, 0.9]])
    assert boxes_of(grid) == [(0.0, 0.0, 0.5, 1.0), (0.75, 0.5, 1.0, 1.0)]
