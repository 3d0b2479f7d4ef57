"""The backbone that reads pairs, and the counts of what it names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_idc.core.types import PairSample
from lightning_idc.core.where import counted, locate
from lightning_idc.errors import CheckpointError, ConfigError, PairError
from lightning_idc.methods import PairTransformer
from lightning_idc.methods.pretraining.cell_classification import ChangeNaming, naming_loss
from lightning_idc.nn.backbones import build_backbone, grid_of
from lightning_idc.nn.differencing import CellCounts, DifferenceCNN

WORDS = ["<pad>", "<bos>", "<eos>", "<unk>", "a"]
CELL = 16


def spots(count: int, seed: int, side: int = 96) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs of noise with up to three spots that are brighter (1) or darker (2) afterwards, and their cells."""
    generator = torch.Generator().manual_seed(seed)

    def draw(high: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=generator)

    before = draw(40, count, 1, side, side).add(100).expand(-1, 3, -1, -1).clone()
    after, cells = before + draw(5, count, 1, side, side), torch.zeros(count, 1, side // CELL, side // CELL).long()
    for pair in range(count):
        for _ in range(int(draw(4))):
            row, column = draw(side // CELL, 2).tolist()
            kind = 1 + int(draw(2))
            cells[pair, 0, row, column] = kind
            y, x = row * CELL + int(draw(9)), column * CELL + int(draw(9))
            after[pair, :, y : y + 8, x : x + 8] = 240 if kind == 1 else 10
    return torch.stack([before, after], 1).to(torch.uint8), cells


@pytest.fixture(scope="module")
def namer() -> ChangeNaming:
    """Trained for some seconds on spots."""
    torch.manual_seed(0)
    found = ChangeNaming(classes=[3], backbone="difference")
    optimizer = torch.optim.AdamW(found.parameters(), 3e-3)
    for step in range(60):
        loss = naming_loss(*found.judged(spots(16, step)))
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
    images = torch.randint(0, 200, (2, 2, 3, 64, 96), dtype=torch.uint8)
    assert backbone(images).shape == (2, 96, 4, 6) and grid_of(backbone, (640, 640)) == (40, 40)
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
    with pytest.raises(PairError, match="images have 1 channels"):
        DifferenceCNN()(torch.zeros(1, 2, 1, 32, 32, dtype=torch.uint8))


def test_probabilities_of_cells_sum_to_the_number_of_changes(namer: ChangeNaming, weights: Path) -> None:
    images, cells = spots(64, seed=1000)
    net = captioner(weights, counts=3).built_net.eval()
    with torch.no_grad():
        found = net.encode(images).extras["cells"].sum((2, 3)).round()
    truth = torch.stack([(cells == kind).sum((1, 2, 3)) for kind in (1, 2)], 1)
    assert (found == truth).float().mean() > 0.9
    with torch.no_grad():
        torch.testing.assert_close(net.encode(images).extras["cells"], namer(images)[0].softmax(1)[:, 1:])


def test_counts_are_read_over_the_image_and_in_its_parts() -> None:
    counts = CellCounts(4, 3, 8, regions=3, max_count=2)
    seen: list[torch.Tensor] = []
    counts.embed.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    cells = torch.zeros(1, 2, 4, 6)
    cells[0, 0, 0, 0] = 1.0  # in the first part of nine
    cells[0, 1, 1, 2] = 1.0  # rows 1 to 2 of 4 lie by one third in the first part and by two in the second
    assert counts(cells).shape == (1, 2, 8)
    first, second = seen[0].view(2, 10, 3)
    assert first[0].tolist() == first[1].tolist() == [0, 1, 0] and first[2:, 0].tolist() == [1] * 8
    torch.testing.assert_close(second[[2, 5], 1], torch.tensor([1 / 3, 2 / 3]))
    cells[0, 0] = 1.0  # more than `most`
    counts(cells)
    assert seen[1].view(2, 10, 3)[0, 0].tolist() == [0, 0, 1]


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


def test_places_come_from_the_counted_cells(weights: Path) -> None:
    found = captioner(weights, counts=3)
    before = torch.full((3, 96, 96), 120, dtype=torch.uint8)
    after = before.clone()
    after[:, 36:44, 4:12] = 240
    after[:, 84:92, 68:76] = 10
    where = locate(found, PairSample("pair", before, after), "a")
    assert len(where.boxes) == 2
    for x, y in ((8, 40), (72, 88)):
        assert any(96 * x1 <= x <= 96 * x2 and 96 * y1 <= y <= 96 * y2 for x1, y1, x2, y2 in where.boxes)
    assert where.map.shape == (6, 6) and float(where.map.max()) == 1.0
    nothing = locate(found, PairSample("pair", before, before), "a")
    assert nothing.boxes == [] and nothing.peak is None


def test_a_change_between_two_cells_is_one_box_and_a_corner_stays_in_the_image() -> None:
    cells = torch.zeros(8, 8)
    cells[3, 4] = cells[3, 5] = 0.5
    cells[0, 0] = 0.9
    where = counted(cells)
    assert where.boxes == [(0.5, 0.3125, 0.75, 0.5625), (0.0, 0.0, 0.1875, 0.1875)]
    assert where.peak == (0.625, 0.4375)
    assert counted(torch.full((8, 8), 0.01)).boxes == []
