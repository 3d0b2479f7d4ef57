"""The small captioners on a GPU: each precision trains, and its checkpoint gives the same caption on the CPU."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers import procap_tiny
from helpers.devices import exact_products, on_gpu
from helpers.plugins import GridPairs, GridSource
from helpers.training import quiet_trainer
from lightning.pytorch import Trainer, seed_everything
from PIL import Image

from lightning_idc.cli import main
from lightning_idc.methods import NAMC, Clip4Idc
from lightning_idc.models import PairTransformer
from lightning_idc.models.captioner import PairCaptioner

CLIP: dict[str, Any] = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 16, "patch_size": 8, "width": 32, "head_width": 16, "layers": 3},
    "text_cfg": {"context_length": 24, "width": 32, "heads": 2, "layers": 2},
}
SMALL: dict[str, Any] = {"width": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1, "dropout": 0.0}
CAPTIONERS: dict[str, Callable[..., PairCaptioner]] = {
    "pair_transformer": lambda folder, **options: PairTransformer(**SMALL, **options),
    "namc": lambda folder, **options: NAMC(**SMALL, freeze_backbone=False, **options),
    "clip4idc": lambda folder, **options: Clip4Idc(
        CLIP, vocabulary=None, intra_layers=2, decoder_layers=1, heads=2, dropout=0.0, **options
    ),
    "procap": lambda folder, **options: procap_tiny.second_stage(folder, **options),
}


@pytest.fixture(autouse=True)
def exact() -> Iterator[None]:
    with exact_products():
        yield


def trainer_of(device: str, precision: Any, folder: Path, steps: int) -> Trainer:
    return quiet_trainer(device, folder, precision=precision, max_steps=steps)


def made(kind: str, folder: Path) -> PairCaptioner:
    seed_everything(2, workers=True, verbose=False)
    return CAPTIONERS[kind](folder, optimizer=lambda groups: torch.optim.AdamW(groups, lr=1e-3))


@pytest.mark.slow
@pytest.mark.parametrize("kind", CAPTIONERS)
@pytest.mark.parametrize(
    ("device", "precision"),
    [
        ("cpu", "bf16-mixed"),
        on_gpu("cuda", "32-true"),
        on_gpu("cuda", "bf16-mixed"),
        on_gpu("cuda", "16-mixed"),
    ],
)
def test_each_precision_trains_and_goes_on_on_the_cpu(
    kind: str,
    device: str,
    precision: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    procap_tiny.tokenizer(tmp_path)
    model = made(kind, tmp_path)
    # enough steps for 16-mixed, which skips steps that overflow, to find its loss scale
    trainer = trainer_of(device, precision, tmp_path, 16)
    data = GridPairs(batch_size=4, seed=1)
    trainer.fit(model, data)
    assert torch.isfinite(trainer.callback_metrics["train/loss"])
    trainer.save_checkpoint(tmp_path / "some.ckpt")
    kept = torch.load(tmp_path / "some.ckpt", weights_only=True, map_location="cpu")
    assert all(value.dtype == torch.float32 for value in kept["state_dict"].values() if value.is_floating_point())

    resumed = trainer_of("cpu", "32-true", tmp_path, 20)
    again = made(kind, tmp_path)
    resumed.fit(again, GridPairs(batch_size=4, seed=1), ckpt_path=tmp_path / "some.ckpt", weights_only=True)
    assert resumed.global_step == 20
    moved = [
        name for name, value in again.state_dict().items() if not torch.equal(value.cpu(), kept["state_dict"][name])
    ]
    trains = [name for name, value in again.named_parameters() if value.requires_grad]
    assert set(trains) <= set(moved)

    sample = GridSource(3, 700).load(1)
    for name, image in (("a", sample.before), ("b", sample.after)):
        Image.fromarray(image.permute(1, 2, 0).numpy()).save(tmp_path / f"{name}.png")
    said = {}
    for where in {"cpu", device}:
        assert main(["describe", "a.png", "b.png", "--model", "some.ckpt", "--device", where, "--json"]) == 0
        said[where] = json.loads(capsys.readouterr().out)
    assert said[device]["caption"] == said["cpu"]["caption"]
    assert said[device]["log_prob"] == pytest.approx(said["cpu"]["log_prob"], abs=1e-4)
