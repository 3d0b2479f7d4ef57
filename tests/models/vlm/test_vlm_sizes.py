"""Pairs of ten sizes in one folder: batches train and predict like single pairs; workers prepare the inputs."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import QUIET
from helpers.vlm_tiny import CAPTIONS, captioner, samples
from lightning.pytorch import Trainer, seed_everything
from PIL import Image
from torch import Tensor

from lightning_idc.data.benchmarks.folder import FolderPairs
from lightning_idc.methods.m3diff.mdp import MDP
from lightning_idc.models.vlm.module import VLMCaptioner
from lightning_idc.utils.errors import ConfigError

SIZES = [(32, 96), (96, 32), (48, 64), (64, 48), (64, 64), (32, 48), (48, 32), (80, 48), (48, 96), (40, 56)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sizes")
    generator = torch.Generator().manual_seed(5)
    lines = []
    for number, (height, width) in enumerate(SIZES):
        name = f"{number}.png"
        for side in ("before", "after"):
            (root / side).mkdir(exist_ok=True)
            pixels = torch.randint(0, 256, (height, width, 3), generator=generator, dtype=torch.uint8)
            Image.fromarray(pixels.numpy()).save(root / side / name)
        captions = CAPTIONS[: 1 + number % 3]
        for split in ("train", "test"):
            row = {"id": f"{split}{number}", "before": f"before/{name}", "after": f"after/{name}", "split": split}
            lines.append(json.dumps({**row, "captions": captions}))
    (root / "pairs.jsonl").write_text("\n".join(lines))
    return root


def data(folder: Path, **options: Any) -> FolderPairs:
    return FolderPairs(root=folder, annotations="pairs.jsonl", **{"group_by_size": True, **options})


def stirred(kind: str) -> VLMCaptioner:
    model = captioner(kind, max_length=8)
    model.add_adapter("mdp", MDP)
    generator = torch.Generator().manual_seed(2)
    for parameter in model.adapters.parameters():
        parameter.data += 0.1 * torch.randn(parameter.shape, generator=generator)
    model.optimizer = lambda groups: torch.optim.SGD(groups, lr=0.1)  # type: ignore[assignment, method-assign]
    return model


def trainer(folder: Path, **options: Any) -> Trainer:
    return Trainer(**QUIET, default_root_dir=folder, enable_checkpointing=False, limit_val_batches=0, **options)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "llava_onevision", "internvl"])
def test_batches_of_ten_sizes_equal_pairs_one_by_one(kind: str, folder: Path, tmp_path: Path) -> None:
    model = stirred(kind)
    result: list[dict[str, dict[str, Any]]] = []
    for size in (4, 1):
        trainer(tmp_path).test(model, data(folder, batch_size=size), verbose=False)
        result.append({record["id"]: record for record in model.predictions})
    together, alone = result
    assert len(together) == len(SIZES) and together.keys() == alone.keys()
    for name, record in alone.items():
        assert record["caption"] == together[name]["caption"]
        for value in ("log_prob", "loss"):
            assert record[value] == pytest.approx(together[name][value], abs=1e-4), name
    assert len({round(record["loss"], 5) for record in alone.values()}) == len(SIZES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["qwen2_5_vl", "internvl"])
def test_a_step_on_ten_sizes_equals_ten_steps_accumulated(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights(batch_size: int, workers: int) -> dict[str, Tensor]:
        seed_everything(3, workers=True, verbose=False)
        model = stirred(kind)
        model.built_net.scoring = "packed"  # the check on first use would create a pair in this process
        if workers:
            # resizing and cropping must happen in workers, not in the training process
            pid, family = os.getpid(), type(model.built_net.family)
            pixels = family.pixels

            def elsewhere(*arguments: Any) -> Any:
                assert os.getpid() != pid
                return pixels(*arguments)

            monkeypatch.setattr(family, "pixels", elsewhere)
        fitted = trainer(tmp_path, max_epochs=1, accumulate_grad_batches=10 // batch_size)
        fitted.fit(model, data(folder, batch_size=batch_size, num_workers=workers))
        assert fitted.global_step == 1 and model.hparams["input_spec"]["size"] is None
        return {name: value.clone() for name, value in model.state_dict().items()}

    alone, together = weights(1, 0), weights(10, 1)
    start = stirred(kind).state_dict()
    moved = sum(not torch.equal(value, start[name]) for name, value in alone.items())
    assert moved > 50
    for name, value in alone.items():
        torch.testing.assert_close(together[name], value, rtol=1e-4, atol=2e-5, msg=name)


def test_images_that_an_add_on_puts_in_are_what_is_seen() -> None:
    model = captioner("qwen2_5_vl")
    first, second = samples(2)
    batch, other = model.collate([first]).to("cpu"), model.collate([second])
    assert batch.prepared is not None
    changed = replace(batch, images=other.images)
    assert changed.prepared is None and changed.to("cpu").prepared is None
    with torch.no_grad():
        assert torch.equal(model.encode(changed).memory, model.encode(other).memory)


def test_sizes_come_from_headers_and_group_batches(folder: Path, tmp_path: Path) -> None:
    source = data(folder).pairs_of("train")
    assert sorted(source.image_size(index) for index in range(len(source))) == sorted(SIZES)
    for side in ("before", "after"):
        (tmp_path / side).mkdir()
        exif = Image.Exif()
        exif[0x0112] = 6  # rotated by 90 degrees
        Image.new("RGB", (40, 24)).save(tmp_path / side / "a.jpg", exif=exif)
    turned = FolderPairs(root=tmp_path, shares=(0, 0, 1)).pairs_of("predict")
    assert turned.image_size(0) == tuple(turned.load(0).before.shape[1:]) == (40, 24)
    with pytest.raises(ConfigError, match="group_by_size and image_size exclude each other"):
        data(folder, image_size=32)
