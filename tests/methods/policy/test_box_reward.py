"""Rewards for boxes in an answer. Oracle: areas by counting pixels, and the best matching by exhaustive search."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from helpers.tiny import TinyCaptioner

from lightning_idc.data.transforms.pairs import Flip
from lightning_idc.images.types import PairBatch, PairSample
from lightning_idc.methods.policy.box_reward import BoxReward
from lightning_idc.methods.policy.rewards import compute_rewards
from lightning_idc.utils.errors import ConfigError, DataError

SIDE = 40


def batch_of(samples: list[PairSample]) -> PairBatch:
    tokens = torch.zeros(len(samples), 1, 2, dtype=torch.long)
    return PairBatch(
        torch.stack([torch.stack([sample.before, sample.after]) for sample in samples]),
        tokens,
        tokens.bool(),
        [sample.id for sample in samples],
        [sample.captions for sample in samples],
        [None] * len(samples),
        boxes=[sample.boxes for sample in samples],
    )


def pixels(box: list[float]) -> np.ndarray:
    grid = np.zeros((SIDE, SIDE), bool)
    x1, y1, x2, y2 = (int(value) for value in box)
    grid[y1:y2, x1:x2] = True
    return grid


def by_counting(
    predicted: list[list[float]], changes: list[list[list[float]]], threshold: float
) -> tuple[float, float]:
    """Return F1 and mean IoU; each change has boxes in both images or in one."""
    table = [
        [max((pixels(p) & pixels(b)).sum() / (pixels(p) | pixels(b)).sum() for b in change) for change in changes]
        for p in predicted
    ]
    if len(predicted) > len(changes):
        table = [list(column) for column in zip(*table, strict=True)]
    rows, columns = len(table), len(table[0])
    matchings = itertools.permutations(range(columns), rows)
    best = max(([table[row][column] for row, column in enumerate(matching)] for matching in matchings), key=sum)
    hits = sum(value >= threshold for value in best)
    return 2 * hits / (rows + columns), sum(best) / columns


def test_scores_equal_pixel_counts() -> None:
    generator = np.random.default_rng(0)

    def box() -> list[float]:
        x, y = generator.integers(0, 25, 2)
        w, h = generator.integers(4, 15, 2)
        return [float(x), float(y), float(x + w), float(y + h)]

    reward = BoxReward(threshold=0.3)
    for _ in range(60):
        changes = [[box()] * 2 if generator.random() < 0.5 else [box(), box()] for _ in range(generator.integers(1, 4))]
        # half of the predictions are near a change
        predicted = [
            [v + generator.integers(0, 3) for v in changes[generator.integers(len(changes))][0]]
            if generator.random() < 0.5
            else box()
            for _ in range(generator.integers(1, 4))
        ]
        found = reward.scores(torch.tensor(predicted, dtype=torch.float32), torch.tensor(changes))
        assert found == pytest.approx(by_counting(predicted, changes, 0.3), abs=1e-6)


def test_boxes_of_answers() -> None:
    reward = BoxReward()
    for answer, boxes in {
        '[{"bbox_2d": [1, 2, 3, 4], "label": "cube"}, {"bbox_2d": [5, 6, 7.5, 8]}]': [[1, 2, 3, 4], [5, 6, 7.5, 8]],
        "[[1,2,3,4]]": [[1, 2, 3, 4]],
        "the cube (1, 2, 3, 4) moved": [[1, 2, 3, 4]],
        "[1, 2, 3] and [1, 2, 3, 4, 5]": [],
        "nothing changed": [],
        "[" * 5000: [],
    }.items():
        assert reward.boxes_of(answer).tolist() == boxes, answer


def pair(boxes: torch.Tensor | None) -> PairSample:
    return PairSample("p", torch.zeros(3, 20, 40).byte(), torch.zeros(3, 20, 40).byte(), boxes=boxes)


NAN = float("nan")


def test_images_scales_and_answers_without_boxes() -> None:
    # one change has boxes in both images, the other in the after image only
    changes = torch.tensor([[[0.0, 0, 10, 10], [20.0, 0, 30, 10]], [[NAN] * 4, [0.0, 10, 10, 20]]])
    batch = batch_of([pair(changes)])
    texts = [["[0, 0, 10, 10]", "[20, 0, 30, 10], [0, 10, 10, 20]", "[30, 0, 20, 10]", "nothing changed"]]
    assert compute_rewards(BoxReward(1, 0), batch, texts).tolist()[0] == pytest.approx([2 / 3, 1, 0, 0])
    assert compute_rewards(BoxReward(0, 1), batch, texts).tolist()[0] == pytest.approx([0.5, 1, 0, 0])
    assert compute_rewards(BoxReward(1, 0, image="before"), batch, texts).tolist()[0] == [1, 0, 0, 0]
    reward = BoxReward(3, 1, image="after", scale=1000)
    thousandths = [["[500, 0, 750, 500] [0, 500, 250, 1000]", "[500, 0, 750, 500]"]]
    assert compute_rewards(reward, batch, thousandths).tolist()[0] == pytest.approx([1, (3 * 2 / 3 + 0.5) / 4])
    assert reward.parts == {"boxes/f1": (pytest.approx(5 / 3), 2), "boxes/iou": (1.5, 2)}
    unchanged = batch_of([pair(torch.zeros(0, 2, 4))])
    assert compute_rewards(BoxReward(), unchanged, [["nothing changed", "[0, 0, 10, 10]"]]).tolist() == [[1, 0]]


def test_rejects_pairs_without_boxes_and_weights_of_zero() -> None:
    with pytest.raises(DataError, match="pair 'p' has no boxes"):
        BoxReward()(batch_of([pair(None)]), [["[0, 0, 1, 1]"]])
    with pytest.raises(ConfigError, match="f1 and iou are both 0"):
        BoxReward(0, 0)
    with pytest.raises(ConfigError, match="image is 'both'"):
        BoxReward(image="both")  # type: ignore[arg-type]


def test_boxes_are_transformed_with_the_pair() -> None:
    sample = pair(torch.tensor([[[2.0, 0, 12, 10], [2.0, 0, 12, 10]]]))
    batch = batch_of([sample, Flip(1.0)(sample, torch.Generator())])
    answers = [["[2, 0, 12, 10]", "[28, 0, 38, 10]"]] * 2
    assert compute_rewards(BoxReward(), batch, answers).tolist() == [[1, 0], [0, 1]]


def test_collate_adds_boxes() -> None:
    model = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>"])
    model.build()
    sample = pair(torch.tensor([[[2.0, 0, 12, 10]] * 2]))
    batch = model.collate([sample, sample])
    assert compute_rewards(BoxReward(), batch.to("cpu"), [["[2, 0, 12, 10]"]] * 2).tolist() == [[1], [1]]
    assert torch.equal(PairBatch.of_plain(batch.plain()).boxes[1], sample.boxes)
