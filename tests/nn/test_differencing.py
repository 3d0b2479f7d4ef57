"""`DifferenceCNN` and `CellCounts`. Oracles: rendered spots, and loops over the cells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_idc.images.types import PairSample
from lightning_idc.models import PairTransformer
from lightning_idc.models.location import locate, locate_counts
from lightning_idc.models.pretraining.cell_classification import ChangeNaming, naming_loss
from lightning_idc.nn.backbones import build_backbone, grid_of
from lightning_idc.nn.differencing import CellCounts, DifferenceCNN
from lightning_idc.nn.peaks import THRESHOLD, peaks
from lightning_idc.utils.errors import CheckpointError, ConfigError, DataError

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "a"]
CELL = 8


def spots(count: int, seed: int, side: int = 96) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of noise with up to three spots that become brighter (1) or darker (2), and the classes of their cells."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=generator)

    before = draw(40, count, 1, side, side).add(100).expand(-1, 3, -1, -1).clone()
    after, cells = before + draw(5, count, 1, side, side), torch.zeros(count, 1, side // CELL, side // CELL).long()
    for pair in range(count):
        positions = torch.randperm(9, generator=generator)[: int(draw(4))]  # nine positions, four cells apart
        for position in positions.tolist():
            row, column = 1 + position // 3 * 4, 1 + position % 3 * 4
            kind = 1 + int(draw(2))
            cells[pair, 0, row - 1 : row + 2, column - 1 : column + 2] = kind
            y, x = row * CELL + int(draw(3)) - 1, column * CELL + int(draw(3)) - 1
            after[pair, :, y : y + 8, x : x + 8] = 240 if kind == 1 else 10
    return torch.stack([before, after], 1).to(torch.uint8), cells


@pytest.fixture(scope="module")
def namer() -> ChangeNaming:
    """A classifier of cells, trained for some seconds on spots."""
    torch.manual_seed(0)
    module = ChangeNaming(classes=[3], backbone="difference")
    optimizer = torch.optim.AdamW(module.parameters(), 3e-3)
    for step in range(60):
        loss = naming_loss(*module.logits_and_labels(spots(16, step)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return module.eval()


@pytest.fixture(scope="module")
def weights(namer: ChangeNaming, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("namer") / "namer.ckpt"
    torch.save({"state_dict": namer.state_dict()}, path)
    return path


def captioner(weights: Path | None, **options: Any) -> PairTransformer:
    settings: dict[str, Any] = {"vocabulary": WORDS, "max_length": 4, "image_size": (96, 96)}
    settings |= {"width": 16, "heads": 2, "grid": 2}
    module = PairTransformer(
        **{**settings, **options},
        backbone="difference",
        backbone_weights=None if weights is None else str(weights),
        freeze_backbone=True,
    )
    module.build()
    return module


def test_difference_cnn_input_is_brightness_and_maximum_change() -> None:
    backbone = DifferenceCNN().eval()
    images = torch.randint(0, 200, (2, 1, 3, 64, 96), dtype=torch.uint8).expand(-1, 2, -1, -1, -1).clone()
    images[:, 1] += torch.randint(0, 9, (2, 3, 64, 96), dtype=torch.uint8)
    assert backbone(images).shape == (2, 32, 8, 12) and grid_of(backbone, (640, 640)) == (80, 80)
    tinted = images.clone()
    tinted[:, 1, 2] += 40
    increase = backbone.normalised(tinted)[:, 1] - backbone.normalised(images)[:, 1]
    torch.testing.assert_close(increase >= 0, torch.ones(2, 64, 96).bool())
    unchanged = backbone.normalised(images[:, :1].expand(-1, 2, -1, -1, -1))
    assert not bool(unchanged[:, 1:].any()) and torch.equal(unchanged[:, 0] * 255, images[:, 0].amax(1).float())


def test_rejects_backbone_of_pairs_for_single_images() -> None:
    with pytest.raises(ConfigError, match="reads pairs; expected one that reads single images"):
        build_backbone("difference")
    with pytest.raises(ConfigError, match="counts is 3, but the backbone reads images one by one"):
        PairTransformer(vocabulary=WORDS, max_length=4, counts=3).build()
    with pytest.raises(ConfigError, match="counts is 3 and freeze_backbone false"):
        PairTransformer(vocabulary=WORDS, max_length=4, counts=3, backbone="difference").build()
    with pytest.raises(DataError, match="images have 1 channels"):
        DifferenceCNN()(torch.zeros(1, 2, 1, 32, 32, dtype=torch.uint8))


@pytest.mark.slow
def test_trained_classifier_counts_changes(namer: ChangeNaming, weights: Path) -> None:
    images, cells = spots(64, seed=1000)
    net = captioner(weights, counts=3).built_net.eval()
    with torch.no_grad():
        probabilities = net.encode(images).extras["cells"]
        torch.testing.assert_close(probabilities, namer(images)[0].softmax(1)[:, 1:])
    counts = net.counts.counts(probabilities)
    expected = torch.stack([(cells == kind).sum((1, 2, 3)) // 9 for kind in (1, 2)], 1)
    assert (counts[..., 0] == expected).float().mean() > 0.9 and torch.equal(counts[..., 1:].sum(-1), counts[..., 0])


def test_counts_of_image_and_regions() -> None:
    counts = CellCounts(4, 3, 8, regions=3, max_count=2)
    cells = torch.zeros(1, 2, 27, 27)
    cells[0, 0, 0:3, 0:3] = 0.8  # in the first of nine regions
    cells[0, 1, 12:15, 16:20] = 0.9  # one change between the centre and the region on its right
    cells[0, 0, 24:27, 24:27], cells[0, 1, 24:27, 24:27] = 0.3, 0.4  # both kinds: one change of the likelier one
    cells[0, 0, 24:27, 0:3] = 0.2  # below the threshold
    first, second = counts.counts(cells)[0].tolist()
    assert first == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0] and second == [2, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    three_changes = torch.zeros(1, 2, 27, 27)
    for y, x in ((1, 1), (1, 6), (6, 1)):  # all in one region; counts are clamped to two
        three_changes[0, 0, y - 1 : y + 2, x - 1 : x + 2] = 1.0
    assert counts.counts(three_changes)[0].tolist() == [[3, 3] + [0] * 8, [0] * 10]
    two_changes = three_changes.clone()
    two_changes[0, 0, :, 5:] = 0
    assert torch.equal(counts(three_changes), counts(two_changes))
    assert not torch.equal(counts(three_changes), counts(cells))


@pytest.mark.slow
def test_captioner_loads_classifier_and_trains_count_embedding(weights: Path) -> None:
    net = captioner(weights, counts=3).built_net
    head = torch.load(weights)["state_dict"]["net.head.weight"]
    assert torch.equal(net.counts.head.weight, head)
    trainable = {name for name, p in net.named_parameters() if p.requires_grad}
    assert not any(name.startswith(("backbone", "counts.head")) for name in trainable) and "counts.kind" in trainable
    net.encode(spots(2, 0)[0]).memory.square().sum().backward()
    without_gradient = [name for name in trainable if net.get_parameter(name).grad is None]
    assert all(name.startswith("decoder") for name in without_gradient)
    with pytest.raises(CheckpointError, match="has 3 classes of cells; counts is 7"):
        captioner(weights, counts=7)


def test_locate_returns_boxes_of_counted_changes(weights: Path) -> None:
    module = captioner(weights, counts=3)
    before = torch.full((3, 96, 96), 120, dtype=torch.uint8)
    after = before.clone()
    after[:, 36:44, 4:12] = 240
    after[:, 84:92, 68:76] = 10
    changes = locate(module, PairSample("pair", before, after), "a")
    assert len(changes.boxes) == 2
    for x, y in ((8, 40), (72, 88)):
        assert any(96 * x1 <= x <= 96 * x2 and 96 * y1 <= y <= 96 * y2 for x1, y1, x2, y2 in changes.boxes)
    assert changes.map.shape == (12, 12) and float(changes.map.max()) == 1.0
    no_change = locate(module, PairSample("pair", before, before), "a")
    assert no_change.boxes == [] and no_change.peak is None


def test_locate_counts_centres_boxes_and_clips_them_to_the_image() -> None:
    cells = torch.zeros(16, 16)
    cells[7:10, 8:12] = 0.9
    cells[0, 0] = 1.0
    cells[:2, :2] += 0.9
    changes = locate_counts(cells.clamp(max=1.0))
    assert changes.boxes[0] == pytest.approx((0.5, 0.40625, 0.75, 0.65625))
    assert changes.boxes[1][:2] == (0.0, 0.0) and len(changes.boxes) == 2
    assert changes.peak == pytest.approx((0.625, 0.53125))
    assert locate_counts(torch.full((8, 8), 0.01)).boxes == []


@pytest.mark.parametrize("levels", [0, 4])  # with 4 levels many means are equal, and the first one is the peak
def test_peaks_and_counts_equal_loop_over_cells(levels: int) -> None:
    torch.manual_seed(0)
    cells = torch.rand(3, 6, 17, 22) ** 4
    cells = (cells * levels).round() / levels if levels else cells
    cells = cells / cells.sum(1, keepdim=True).clamp(min=1)
    positions, centres, means = peaks(cells.sum(1))
    expected_positions, expected_centres = [], []
    expected_counts = torch.zeros(3, 6, 10, dtype=torch.long)
    for image in range(3):
        padded = torch.nn.functional.pad(cells[image], [2] * 4)
        total = padded.sum(0)
        mean = torch.nn.functional.avg_pool2d(total[None], 3, 1, 1)[0]
        for row in range(17):
            for column in range(22):
                window = mean[row : row + 5, column : column + 5].flatten()
                if window[12] < THRESHOLD or (window[:12] >= window[12]).any() or (window[13:] > window[12]).any():
                    continue
                expected_positions.append([image, row, column])
                mass = total[row : row + 5, column : column + 5]
                y, x = (mass.sum(1 - axis) @ torch.arange(5.0) / mass.sum() for axis in (0, 1))
                centre = [row + float(y) - 1.5, column + float(x) - 1.5]
                expected_centres.append(centre)
                kind = padded[:, row + 1 : row + 4, column + 1 : column + 4].sum((1, 2)).argmax()
                region = int(centre[0] / 17 * 3) * 3 + int(centre[1] / 22 * 3)
                expected_counts[image, kind, 0] += 1
                expected_counts[image, kind, 1 + region] += 1
    assert len(expected_positions) > 10 and positions.tolist() == expected_positions
    assert torch.allclose(centres, torch.tensor(expected_centres), atol=1e-4)
    assert (means >= THRESHOLD).all() and torch.equal(CellCounts(8, 7, 16).counts(cells), expected_counts)


def test_counts_of_unchanged_pairs_are_zero() -> None:
    assert CellCounts(8, 7, 16).counts(torch.zeros(2, 6, 9, 9)).tolist() == [[[0] * 10] * 6] * 2
