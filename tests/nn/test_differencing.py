"""The backbone that reads pairs, and the counts of what it names."""

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
    """Pairs of noise with up to three spots that are brighter (1) or darker (2) afterwards, and their cells."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=generator)

    before = draw(40, count, 1, side, side).add(100).expand(-1, 3, -1, -1).clone()
    after, cells = before + draw(5, count, 1, side, side), torch.zeros(count, 1, side // CELL, side // CELL).long()
    for pair in range(count):
        places = torch.randperm(9, generator=generator)[: int(draw(4))]  # of nine, none within four cells of another
        for place in places.tolist():
            row, column = 1 + place // 3 * 4, 1 + place % 3 * 4
            kind = 1 + int(draw(2))
            cells[pair, 0, row - 1 : row + 2, column - 1 : column + 2] = kind
            y, x = row * CELL + int(draw(3)) - 1, column * CELL + int(draw(3)) - 1
            after[pair, :, y : y + 8, x : x + 8] = 240 if kind == 1 else 10
    return torch.stack([before, after], 1).to(torch.uint8), cells


@pytest.fixture(scope="module")
def namer() -> ChangeNaming:
    """Trained for some seconds on spots."""
    torch.manual_seed(0)
    found = ChangeNaming(classes=[3], backbone="difference")
    optimizer = torch.optim.AdamW(found.parameters(), 3e-3)
    for step in range(60):
        loss = naming_loss(*found.logits_and_labels(spots(16, step)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return found.eval()


@pytest.fixture(scope="module")
def weights(namer: ChangeNaming, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("namer") / "namer.ckpt"
    torch.save({"state_dict": namer.state_dict()}, path)
    return path


def captioner(weights: Path | None, **options: Any) -> PairTransformer:
    settings: dict[str, Any] = {"vocabulary": WORDS, "max_length": 4, "image_size": (96, 96)}
    settings |= {"width": 16, "heads": 2, "grid": 2}
    found = PairTransformer(
        **{**settings, **options},
        backbone="difference",
        backbone_weights=None if weights is None else str(weights),
        freeze_backbone=True,
    )
    found.build()
    return found


def test_one_grid_of_a_pair_in_which_only_changes_of_any_channel_are_seen() -> None:
    backbone = DifferenceCNN().eval()
    images = torch.randint(0, 200, (2, 1, 3, 64, 96), dtype=torch.uint8).expand(-1, 2, -1, -1, -1).clone()
    images[:, 1] += torch.randint(0, 9, (2, 3, 64, 96), dtype=torch.uint8)
    assert backbone(images).shape == (2, 32, 8, 12) and grid_of(backbone, (640, 640)) == (80, 80)
    tinted = images.clone()
    tinted[:, 1, 2] += 40
    seen = backbone.normalised(tinted)
    torch.testing.assert_close(seen[:, 1] - backbone.normalised(images)[:, 1] >= 0, torch.ones(2, 64, 96).bool())
    equal = backbone.normalised(images[:, :1].expand(-1, 2, -1, -1, -1))
    assert not bool(equal[:, 1:].any()) and torch.equal(equal[:, 0] * 255, images[:, 0].amax(1).float())


def test_it_is_refused_where_images_are_read_one_by_one() -> None:
    with pytest.raises(ConfigError, match="reads pairs; here images are read one by one"):
        build_backbone("difference")
    with pytest.raises(ConfigError, match="counts is 3 and backbone reads images one by one"):
        PairTransformer(vocabulary=WORDS, max_length=4, counts=3).build()
    with pytest.raises(ConfigError, match="counts is 3 and freeze_backbone false"):
        PairTransformer(vocabulary=WORDS, max_length=4, counts=3, backbone="difference").build()
    with pytest.raises(DataError, match="images have 1 channels"):
        DifferenceCNN()(torch.zeros(1, 2, 1, 32, 32, dtype=torch.uint8))


def test_changes_are_locate_counts_one_by_one(namer: ChangeNaming, weights: Path) -> None:
    images, cells = spots(64, seed=1000)
    net = captioner(weights, counts=3).built_net.eval()
    with torch.no_grad():
        named = net.encode(images).extras["cells"]
        torch.testing.assert_close(named, namer(images)[0].softmax(1)[:, 1:])
    found = net.counts.counts(named)
    truth = torch.stack([(cells == kind).sum((1, 2, 3)) // 9 for kind in (1, 2)], 1)
    assert (found[..., 0] == truth).float().mean() > 0.9 and torch.equal(found[..., 1:].sum(-1), found[..., 0])


def test_counts_are_integers_in_the_image_and_in_its_parts() -> None:
    counts = CellCounts(4, 3, 8, regions=3, max_count=2)
    cells = torch.zeros(1, 2, 27, 27)
    cells[0, 0, 0:3, 0:3] = 0.8  # in the first part of nine
    cells[0, 1, 12:15, 16:20] = 0.9  # one change at the border of the centre and of what is right of it
    cells[0, 0, 24:27, 24:27], cells[0, 1, 24:27, 24:27] = 0.3, 0.4  # of either kind: one change of the likelier one
    cells[0, 0, 24:27, 0:3] = 0.2  # nothing
    first, second = counts.counts(cells)[0].tolist()
    assert first == [1, 1, 0, 0, 0, 0, 0, 0, 0, 0] and second == [2, 0, 0, 0, 0, 0, 1, 0, 0, 1]
    two = torch.zeros(1, 2, 27, 27)
    for y, x in ((1, 1), (1, 6), (6, 1)):  # three in one part; numbers above two are read as two
        two[0, 0, y - 1 : y + 2, x - 1 : x + 2] = 1.0
    assert counts.counts(two)[0].tolist() == [[3, 3] + [0] * 8, [0] * 10]
    two_of_them = two.clone()
    two_of_them[0, 0, :, 5:] = 0
    assert torch.equal(counts(two), counts(two_of_them)) and not torch.equal(counts(two), counts(cells))


def test_a_frozen_captioner_starts_from_the_named_cells_and_its_words_depend_on_the_counts(weights: Path) -> None:
    found = captioner(weights, counts=3)
    head = torch.load(weights)["state_dict"]["net.head.weight"]
    assert torch.equal(found.built_net.counts.head.weight, head)
    trained = {name for name, p in found.built_net.named_parameters() if p.requires_grad}
    assert not any(name.startswith(("backbone", "counts.head")) for name in trained) and "counts.kind" in trained
    found.built_net.encode(spots(2, 0)[0]).memory.square().sum().backward()
    silent = [name for name in trained if found.built_net.get_parameter(name).grad is None]
    assert all(name.startswith("decoder") for name in silent)
    with pytest.raises(CheckpointError, match="names 3 classes of cells; counts is 7"):
        captioner(weights, counts=7)


def test_places_come_from_the_locate_counts_cells(weights: Path) -> None:
    found = captioner(weights, counts=3)
    before = torch.full((3, 96, 96), 120, dtype=torch.uint8)
    after = before.clone()
    after[:, 36:44, 4:12] = 240
    after[:, 84:92, 68:76] = 10
    where = locate(found, PairSample("pair", before, after), "a")
    assert len(where.boxes) == 2
    for x, y in ((8, 40), (72, 88)):
        assert any(96 * x1 <= x <= 96 * x2 and 96 * y1 <= y <= 96 * y2 for x1, y1, x2, y2 in where.boxes)
    assert where.map.shape == (12, 12) and float(where.map.max()) == 1.0
    nothing = locate(found, PairSample("pair", before, before), "a")
    assert nothing.boxes == [] and nothing.peak is None


def test_a_change_between_two_cells_is_one_box_and_a_corner_stays_in_the_image() -> None:
    cells = torch.zeros(16, 16)
    cells[7:10, 8:12] = 0.9
    cells[0, 0] = 1.0
    cells[:2, :2] += 0.9
    where = locate_counts(cells.clamp(max=1.0))
    assert where.boxes[0] == pytest.approx((0.5, 0.40625, 0.75, 0.65625))
    assert where.boxes[1][:2] == (0.0, 0.0) and len(where.boxes) == 2
    assert where.peak == pytest.approx((0.625, 0.53125))
    assert locate_counts(torch.full((8, 8), 0.01)).boxes == []


@pytest.mark.parametrize("levels", [0, 4])  # with 4 many means are equal, of which the first one is the peak
def test_peaks_and_counts_are_those_of_a_loop_over_the_cells(levels: int) -> None:
    torch.manual_seed(0)
    cells = torch.rand(3, 6, 17, 22) ** 4
    cells = (cells * levels).round() / levels if levels else cells
    cells = cells / cells.sum(1, keepdim=True).clamp(min=1)
    counter = CellCounts(8, 7, 16)
    found, centres, means = peaks(cells.sum(1))
    listed, middles = [], []
    counts = torch.zeros(3, 6, 10, dtype=torch.long)
    for image in range(3):
        near = torch.nn.functional.pad(cells[image], [2] * 4)
        total = near.sum(0)
        mean = torch.nn.functional.avg_pool2d(total[None], 3, 1, 1)[0]
        for row in range(17):
            for column in range(22):
                around = mean[row : row + 5, column : column + 5].flatten()
                if around[12] < THRESHOLD or (around[:12] >= around[12]).any() or (around[13:] > around[12]).any():
                    continue
                listed.append([image, row, column])
                mass = total[row : row + 5, column : column + 5]
                y, x = (mass.sum(1 - axis) @ torch.arange(5.0) / mass.sum() for axis in (0, 1))
                middles.append([row + float(y) - 1.5, column + float(x) - 1.5])
                kind = near[:, row + 1 : row + 4, column + 1 : column + 4].sum((1, 2)).argmax()
                region = int(middles[-1][0] / 17 * 3) * 3 + int(middles[-1][1] / 22 * 3)
                counts[image, kind, 0] += 1
                counts[image, kind, 1 + region] += 1
    assert len(listed) > 10 and found.tolist() == listed
    assert torch.allclose(centres, torch.tensor(middles), atol=1e-4)
    assert (means >= THRESHOLD).all() and torch.equal(counter.counts(cells), counts)


def test_nothing_is_locate_counts_where_nothing_is_seen() -> None:
    assert CellCounts(8, 7, 16).counts(torch.zeros(2, 6, 9, 9)).tolist() == [[[0] * 10] * 6] * 2
