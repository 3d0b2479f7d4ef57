"""The baseline captioner and its pre-training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import SILENT as QUIET
from lightning.pytorch import Trainer
from torch.utils.data import DataLoader

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.source import PairSource
from lightning_idc.images.types import PairSample
from lightning_idc.methods.procap.tokenizer import NamingTokenizer
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.models.pair_transformer.net import PairTransformerNet
from lightning_idc.models.pretraining.cell_classification import ObjectNaming, naming_loss
from lightning_idc.nn.backbones import SmallCNN, TimmGrid
from lightning_idc.nn.decoding.beam_search import beam_search, beam_search_uncached
from lightning_idc.nn.decoding.decoding import greedy, greedy_uncached
from lightning_idc.nn.vocabulary import EOS
from lightning_idc.utils.errors import CheckpointError, DataError

SIDES = {"left": (slice(8, 24), slice(0, 16)), "right": (slice(8, 24), slice(16, 32))}


class Squares(PairSource):
    """Noisy grey images; a square appears on the left or right of the second image, or nothing changes."""

    def __init__(self, count: int, first: int) -> None:
        self.first = first
        self.ids = [f"{first + index}" for index in range(count)]

    def __len__(self) -> int:
        return len(self.ids)

    def change_type(self, index: int) -> str:
        return ("left", "right", "no_change")[(self.first + index) % 3]

    def captions(self, index: int) -> list[str]:
        side = self.change_type(index)
        return (
            ["nothing changed."] if side == "no_change" else [f"a square appeared on the {side}.", f"{side}: a square"]
        )

    def load(self, index: int) -> PairSample:
        generator = torch.Generator().manual_seed(self.first + index)
        images = torch.randint(90, 110, (2, 3, 32, 32), generator=generator, dtype=torch.uint8)
        side = self.change_type(index)
        if side != "no_change":
            rows, columns = SIDES[side]
            images[1][:, rows, columns] = 220
        return PairSample(self.ids[index], images[0], images[1], self.captions(index), side)


class SquarePairs(PairDataModule):
    def source(self, split: str) -> PairSource:
        return {"train": Squares(48, 0)}.get(split, Squares(12, 900))


def make_net(freeze: bool = False, **options: object) -> PairTransformerNet:
    torch.manual_seed(0)
    settings = {"width": 32, "heads": 2, "dropout": 0.0, "freeze_backbone": freeze, **options}
    return PairTransformerNet(SmallCNN(24), (4, 4), 20, **settings)  # type: ignore[arg-type]


def pairs(count: int = 3, size: int = 32) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, 2, 3, size, size), dtype=torch.uint8, generator=generator)


def train_step(net: PairTransformerNet) -> None:
    net.train()
    optimizer = torch.optim.SGD([p for p in net.parameters() if p.requires_grad], 0.1)
    tokens = torch.randint(4, 20, (3, 2, 7), generator=torch.Generator().manual_seed(2))
    net.logits(net.encode(pairs()), tokens).square().mean().backward()
    optimizer.step()


def test_the_default_is_the_size_that_the_recipe_promises() -> None:
    net = PairTransformerNet(SmallCNN(), (8, 8), 70)
    assert 900_000 < sum(p.numel() for p in net.parameters()) < 1_050_000


def test_every_parameter_gets_a_gradient() -> None:
    net = make_net()
    train_step(net)
    silent = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert silent == []


def test_a_frozen_backbone_stays_bit_for_bit_and_builds_no_graph() -> None:
    net = make_net(freeze=True)
    before = {key: value.clone() for key, value in net.backbone.state_dict().items()}
    others = {key: value.clone() for key, value in net.fuse.state_dict().items()}
    assert not net.grids(pairs()).requires_grad
    train_step(net)
    assert "layers.1.running_mean" in before
    assert all(torch.equal(value, before[key]) for key, value in net.backbone.state_dict().items())
    assert not any(torch.equal(value, others[key]) for key, value in net.fuse.state_dict().items())


def test_a_backbone_that_learns_moves_its_statistics() -> None:
    net = make_net()
    before = {key: value.clone() for key, value in net.backbone.state_dict().items()}
    train_step(net)
    assert not any(torch.equal(value, before[key]) for key, value in net.backbone.state_dict().items())


def test_before_and_after_are_distinguished() -> None:
    net, images = make_net().eval(), pairs()
    forward, backward = net.encode(images).memory, net.encode(images.flip(1)).memory
    assert not torch.allclose(forward, backward, atol=1e-2)


def test_other_image_sizes_are_pooled_to_the_grid() -> None:
    net = make_net().eval()
    assert net.encode(pairs(size=48)).memory.shape == net.encode(pairs(size=32)).memory.shape == (3, 16, 32)


@torch.no_grad()
def test_decoding_with_and_without_a_cache_agree_on_the_whole_net() -> None:
    net = make_net().eval()
    net.decoder.norm.weight.data *= 4
    torch.nn.init.normal_(net.decoder.position)
    net.decoder.bias.data[EOS] = 4.0
    features = net.encode(pairs(24))
    # features of an untrained network hardly differ between pairs
    features.memory = features.memory * torch.randn(24, 1, 32, generator=torch.Generator().manual_seed(0))
    cached = greedy(net, features, 12)
    assert len({len(ids) for ids in cached.ids}) > 2
    assert cached.ids == greedy_uncached(net, features, 12).ids
    assert beam_search(net, features, 12, 3).ids == beam_search_uncached(net, features, 12, 3).ids


# ---- the module ------------------------------------------------------------------------------------------


def small(**options: object) -> PairTransformer:
    settings = {"width": 32, "encoder_layers": 1, "decoder_layers": 1, "heads": 2, "dropout": 0.0, **options}
    return PairTransformer(optimizer=lambda groups: torch.optim.AdamW(groups, lr=3e-3), **settings)  # type: ignore[arg-type]


def run(model: PairTransformer, **options: object) -> Trainer:
    torch.manual_seed(0)
    trainer = Trainer(**{**QUIET, **options})  # type: ignore[arg-type]
    trainer.fit(model, SquarePairs(batch_size=12))
    return trainer


@pytest.mark.slow
def test_it_learns_to_say_what_changed_and_comes_back_from_a_checkpoint(tmp_path: Path) -> None:
    model = small()
    trainer = run(model, max_epochs=20, limit_val_batches=0)
    report = trainer.test(model, SquarePairs(batch_size=12), verbose=False)[0]
    assert report["test/CIDEr-D"] > 200
    right = [record["change_type"].replace("no_change", "nothing") in record["caption"] for record in model.predictions]
    assert sum(right) >= 11

    trainer.save_checkpoint(tmp_path / "last.ckpt")
    again = PairTransformer.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    sample = Squares(1, 901).load(0)
    first, second = model.describe(sample.before, sample.after), again.describe(sample.before, sample.after)
    assert first.text == second.text and "right" in first.text
    assert first.log_prob == pytest.approx(second.log_prob, abs=1e-6)
    assert first.change_score is not None and first.change_score > 0.5
    assert model.describe(sample.before, sample.before).change_score < 0.5  # type: ignore[operator]


def test_the_grid_follows_the_backbone_and_the_size_of_the_images() -> None:
    words = ["<pad>", "<bos>", "<eos>", "<unk>", "a"]
    for backbone, size, grid in (("cnn", (32, 48), (4, 6)), ("test_vit", (64, 32), (4, 2)), ("cnn", None, (8, 8))):
        model = small(backbone=backbone, vocabulary=words, image_size=size)
        model.build()
        assert model.net.grid == grid  # type: ignore[union-attr]
    model = small(grid=5, vocabulary=words)
    model.build()
    assert model.net.grid == (5, 5)  # type: ignore[union-attr]


def test_backbone_and_rest_are_separate_parameter_groups() -> None:
    words = ["<pad>", "<bos>", "<eos>", "<unk>", "a"]
    model = small(vocabulary=words)
    model.build()
    sizes = {group["name"]: sum(p.numel() for p in group["params"]) for group in model.parameter_groups()}
    assert sizes["vision"] == sum(p.numel() for p in model.net.backbone.parameters())  # type: ignore[union-attr]
    frozen = small(vocabulary=words, freeze_backbone=True)
    frozen.build()
    assert [group["name"] for group in frozen.parameter_groups()] == ["language"]


# ---- pre-training ----------------------------------------------------------------------------------------


def colored_cells(count: int, seed: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Images of 4 x 4 cells, each empty or filled with one of two colours in one of two textures."""
    generator = torch.Generator().manual_seed(seed)
    items = []
    for _ in range(count):
        cells = torch.randint(0, 3, (2, 4, 4), generator=generator)
        cells[1] = torch.where(cells[0] > 0, 1 + cells[1] % 2, 0)
        big = cells.repeat_interleave(8, 1).repeat_interleave(8, 2)
        image = torch.full((3, 32, 32), 90.0)
        image[0] += 120 * (big[0] == 1)
        image[2] += 120 * (big[0] == 2)
        image -= 80 * (big[1] == 2) * (torch.arange(32) % 2)
        items.append((image.to(torch.uint8), cells))
    return items


@pytest.mark.slow
def test_naming_objects_teaches_a_backbone_that_the_captioner_takes_over(tmp_path: Path) -> None:
    torch.manual_seed(0)
    naming = ObjectNaming(classes=(3, 3), optimizer=lambda p: torch.optim.AdamW(p, lr=1e-2))
    trainer = Trainer(**{**QUIET, "max_epochs": 3})  # type: ignore[arg-type]
    loaders = [DataLoader(colored_cells(count, seed), 16) for count, seed in ((96, 0), (32, 1))]
    trainer.fit(naming, *loaders)
    assert trainer.callback_metrics["val/cells_named"] > 90

    trainer.save_checkpoint(tmp_path / "look.ckpt")
    captioner = small(backbone_weights=str(tmp_path / "look.ckpt"), freeze_backbone=True)
    run(captioner, max_epochs=1, limit_val_batches=0)
    learned = naming.backbone.state_dict()
    taken = captioner.net.backbone.state_dict()  # type: ignore[union-attr]
    assert all(torch.equal(value, taken[key]) for key, value in learned.items())
    # the file is no longer needed, because the checkpoint contains all weights
    captioner.trainer.save_checkpoint(tmp_path / "captioner.ckpt")
    (tmp_path / "look.ckpt").unlink()
    again = PairTransformer.load_from_checkpoint(tmp_path / "captioner.ckpt", weights_only=True)
    assert torch.equal(again.net.backbone.state_dict()["layers.0.weight"], learned["layers.0.weight"])  # type: ignore[union-attr]


def test_empty_images_do_not_spoil_the_share_of_cells_named() -> None:
    naming = ObjectNaming(classes=(3, 3)).eval()
    images, cells = torch.zeros(2, 3, 32, 32, dtype=torch.uint8), torch.zeros(2, 2, 4, 4, dtype=torch.long)
    loader = DataLoader(list(zip(images, cells, strict=True)), 2)
    full = DataLoader(colored_cells(2, 0), 2)
    trainer = Trainer(**QUIET)  # type: ignore[arg-type]
    alone = trainer.validate(naming, full, verbose=False)[0]["val/cells_named"]
    both = DataLoader([*loader.dataset, *full.dataset], 2)  # type: ignore[misc]
    assert trainer.validate(naming, both, verbose=False)[0]["val/cells_named"] == pytest.approx(alone)


@pytest.mark.parametrize("kind", [ObjectNaming, NamingTokenizer])
def test_an_attribute_that_is_unknown_in_all_cells_of_a_batch_counts_nothing(kind: type[Any]) -> None:
    sizes = {"codebook_size": 8, "latent": 8, "width": 8, "multipliers": [1], "blocks": 1, "patch_size": 8}
    naming = kind(classes=(3, 3), **(sizes if kind is NamingTokenizer else {}))
    images, cells = next(iter(DataLoader(colored_cells(4, 0), 4)))
    known, unknown = cells.clone(), cells.clone()
    unknown[:, 1] = -100
    logits = [torch.randn(4, 3, *cells.shape[-2:]) for _ in range(2)]
    torch.testing.assert_close(naming_loss(logits, unknown), naming_loss(logits[:1], known[:, :1]))
    trainer = Trainer(**QUIET, max_steps=1, limit_val_batches=1)  # type: ignore[arg-type]
    loader = DataLoader([*zip(images, unknown, strict=True)], 4)  # type: ignore[arg-type]
    trainer.fit(naming, loader, loader)
    assert trainer.callback_metrics["train/loss"].isfinite()


@pytest.mark.parametrize("kind", [ObjectNaming, NamingTokenizer])
@pytest.mark.parametrize("label", [3, -1])
def test_labels_of_no_class_are_named(kind: type[Any], label: int) -> None:
    sizes = {"codebook_size": 8, "latent": 8, "width": 8, "multipliers": [1], "blocks": 1, "patch_size": 8}
    naming = kind(classes=(3, 3), **(sizes if kind is NamingTokenizer else {}))
    images, cells = next(iter(DataLoader(colored_cells(4, 0), 4)))
    cells[2, 1, 0, 0] = label
    loader = DataLoader([*zip(images, cells, strict=True)], 4)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=rf"attribute 1 has the label {label}; expected 0 to 2, or -100"):
        Trainer(**QUIET, max_steps=1).fit(naming, loader)  # type: ignore[arg-type]


def test_labels_of_another_grid_are_refused() -> None:
    batch = (torch.zeros(2, 3, 64, 64, dtype=torch.uint8), torch.zeros(2, 4, 4, 4, dtype=torch.long))
    with pytest.raises(DataError, match="4 attributes on a 4x4 grid; ObjectNaming predicts 4 on 8x8 for images of 64"):
        ObjectNaming().training_step(batch, 0)


def test_labels_with_another_number_of_attributes_are_refused() -> None:
    batch = (torch.zeros(2, 3, 64, 64, dtype=torch.uint8), torch.zeros(2, 3, 8, 8, dtype=torch.long))
    with pytest.raises(DataError, match="3 attributes on a 8x8 grid; ObjectNaming predicts 4 on 8x8"):
        ObjectNaming().training_step(batch, 0)


def test_a_timm_backbone_can_be_taught_and_taken_over(tmp_path: Path) -> None:
    naming = ObjectNaming(classes=(3, 3), backbone="test_resnet")
    state = {"state_dict": naming.state_dict()}
    torch.save(state, tmp_path / "look.ckpt")
    words = ["<pad>", "<bos>", "<eos>", "<unk>", "a"]
    captioner = small(backbone="test_resnet", backbone_weights=str(tmp_path / "look.ckpt"), vocabulary=words)
    captioner.build()
    assert isinstance(captioner.net.backbone, TimmGrid)  # type: ignore[union-attr]
    with pytest.raises(CheckpointError, match="holds another backbone"):
        small(backbone="cnn", backbone_weights=str(tmp_path / "look.ckpt"), vocabulary=words).build()
