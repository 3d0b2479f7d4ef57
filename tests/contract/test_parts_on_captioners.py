"""Every part of the papers on every captioner: it works, or one line refuses it.

``works`` means: every parameter gets a gradient, weight 0 equals absent, the checkpoint loads without the callbacks, a
resumed run equals an uninterrupted one, and two processes hold the same weights. The documentation contains the same
table.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any

import pytest
import torch
from helpers.captioners import CAPTIONERS, PARTS, RejectedPairs
from helpers.processes import launch
from helpers.training import assert_same, fit, host_state
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint

from lightning_idc.models.loading import load_module, strip_aux
from lightning_idc.utils.errors import ConfigError

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "notes" / "parts.md"
VLMS = ("Qwen2.5-VL", "LLaVA-OneVision", "LLaVA-1.5")
NO_GRID = r"VLMCaptioner has no features \['before', 'after'\] in PairFeatures.extras"
NO_CAPTIONER = {
    "PreferenceOptimization": "PreferenceOptimization trains a PairCaptioner; this is a Foreign",
    "PreferenceOptimization, AdaptersOff": "LoRA needs a PairCaptioner or another PairModule; Foreign is not one",
    "AdversarialRetriever": "PreferenceOptimization trains a PairCaptioner; this is a Foreign",
    "MDPAdapter": "MDPAdapter needs a PairCaptioner or another PairModule; Foreign is not one",
    "StatefulEncoderAdapter": "StatefulEncoderAdapter needs a PairCaptioner or another PairModule; Foreign is not one",
    "LoRA": "LoRA needs a PairCaptioner or another PairModule; Foreign is not one",
    "GroupRelative": "GroupRelative trains a PairCaptioner; this is a Foreign",
    "SelfCritical": "SelfCritical trains a PairCaptioner; this is a Foreign",
    "NoiseMasking": "NoiseMasking masks words, but Foreign has no vocabulary",
    "NoiseMasking and MaskedReconstruction": "NoiseMasking masks words, but Foreign has no vocabulary",
}
MASKING = [part for part in PARTS if "NoiseMasking" in part or "MaskedReconstruction" in part]
REBUILDING = [part for part in PARTS if "MaskedReconstruction" in part]
REFUSED: dict[tuple[str, str], str] = {
    **{(part, "another LightningModule"): reason for part, reason in NO_CAPTIONER.items()},
    **{(part, captioner): NO_GRID for captioner in VLMS for part in REBUILDING},
    ("StatefulEncoderAdapter", "ProCap"): "ProCapNet has no module 'backbone' for StatefulEncoder",
    ("StatefulEncoderAdapter", "CLIP4IDC"): "Clip4IdcNet has no module 'backbone' for StatefulEncoder",
    ("StatefulEncoderAdapter", "LLaVA-1.5"): "LLaVA-1.5 reads the pair as one image",
    ("MDPAdapter", "ProCap"): "ProCapNet has no module 'backbone' for MDP",
    ("MDPAdapter", "LLaVA-1.5"): "LLaVA-1.5 reads the pair as one image, whose halves no adapter can separate",
}
"""Parts that a captioner refuses, each with the start of the message."""
BATCH_NORM = ("PairTransformer", "NAMC")
WITHOUT_DROPOUT = ("PreferenceOptimization", "PreferenceOptimization, AdaptersOff", "GroupRelative", "SelfCritical")
"""Parts that train the captioner in eval mode."""
CHECKPOINTS = TemporaryDirectory()
GROUPED_BY = "captioner"
CELLS = [(part, captioner) for part in PARTS for captioner in CAPTIONERS]
WORKING = [cell for cell in CELLS if cell not in REFUSED]
cells = pytest.mark.parametrize(("part", "captioner"), WORKING)


class Idle(Callback):
    """Records the parameters that miss a gradient in some step, and those that never get one other than 0.

    ``after_one_epoch`` has the values of the parameters after the first epoch.
    """

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.absent: set[str] = set()
        self.zero = {name for name, parameter in pl_module.named_parameters() if parameter.requires_grad}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.current_epoch == 0:
            self.after_one_epoch = {name: value.detach().clone() for name, value in pl_module.named_parameters()}

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: object) -> None:
        for name, parameter in pl_module.named_parameters():
            if parameter.requires_grad and parameter.grad is None:
                self.absent.add(name)
            elif parameter.grad is not None and parameter.grad.any():
                self.zero.discard(name)


def train(captioner: str, callbacks: list[Callback], folder: Path, **options: Any) -> Any:
    """Train for two epochs of two steps, from the same seed."""
    data = RejectedPairs(batch_size=options.pop("batch_size", 4))
    torch.manual_seed(0)
    return fit(callbacks, folder, CAPTIONERS[captioner](), data=data, **options)


def saver(folder: Path) -> ModelCheckpoint:
    """Saves a checkpoint after three of four steps, in the middle of the second epoch."""
    return ModelCheckpoint(folder, filename="three", every_n_train_steps=3, save_top_k=-1)


@cache
def trained(part: str, captioner: str) -> tuple[Any, Idle, Path]:
    """A captioner trained with a part, and its checkpoint after three steps; tests must not modify it."""
    idle, folder = Idle(), Path(mkdtemp(dir=CHECKPOINTS.name))
    callbacks = [*PARTS[part].callbacks(captioner), idle, saver(folder)]
    return train(captioner, callbacks, folder, enable_checkpointing=True), idle, folder / "three.ckpt"


@cache
def trained_without(part: str | None, captioner: str) -> dict[str, Any]:
    """Weights of a captioner trained with the callbacks that a part requires, usually none, but without the part."""
    needed = PARTS[part].needs(captioner) if part is not None else []
    if part is not None and not needed:
        return trained_without(None, captioner)
    with TemporaryDirectory() as folder:
        return dict(train(captioner, needed, Path(folder)).state_dict())


@pytest.mark.parametrize(("part", "captioner"), list(REFUSED))
def test_what_does_not_fit_is_refused_in_one_line(part: str, captioner: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"^{REFUSED[part, captioner]}") as caught:
        train(captioner, PARTS[part].callbacks(captioner), tmp_path, max_steps=1)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@cells
def test_every_parameter_trains(part: str, captioner: str) -> None:
    model, idle, _ = trained(part, captioner)
    assert idle.absent == set()
    # without masks, NAMC's mask embedding gets a zero gradient, so that distributed training finds it
    masks = {"net.encoder.mask_embedding"} if part not in MASKING else set()
    assert idle.zero <= masks
    before = trained_without(part, captioner)
    assert any(not torch.equal(value, model.state_dict()[name]) for name, value in before.items())


@pytest.mark.slow
@pytest.mark.parametrize(("part", "captioner"), [cell for cell in WORKING if PARTS[cell[0]].is_addon(cell[1])])
def test_weight_zero_equals_absent(part: str, captioner: str, tmp_path: Path) -> None:
    """A part of weight 0 leaves the same weights as no part, although only this run writes a checkpoint."""
    callbacks = [*PARTS[part].callbacks(captioner, weight=0.0), saver(tmp_path)]
    off = train(captioner, callbacks, tmp_path, enable_checkpointing=True)
    assert_same(host_state(off), trained_without(part, captioner))


@pytest.mark.slow
@cells
def test_a_checkpoint_loads_without_the_callbacks(part: str, captioner: str, tmp_path: Path) -> None:
    model, *_ = trained(part, captioner)
    model.trainer.save_checkpoint(tmp_path / "with.ckpt")
    if captioner == "another LightningModule":
        assert strip_aux(tmp_path / "with.ckpt", tmp_path / "with.ckpt")
    alone = load_module(type(model), tmp_path / "with.ckpt")
    assert_same(dict(alone.state_dict()), host_state(model))


@pytest.mark.slow
@cells
def test_resume_equals_uninterrupted(part: str, captioner: str, tmp_path: Path) -> None:
    model, _, checkpoint = trained(part, captioner)
    torch.manual_seed(12345)
    resumed = train(captioner, PARTS[part].callbacks(captioner), tmp_path, ckpt_path=checkpoint)
    assert_same(dict(resumed.state_dict()), dict(model.state_dict()))


@pytest.mark.dist
@pytest.mark.parametrize("captioner", [name for name in CAPTIONERS if any(cell[1] == name for cell in WORKING)])
def test_two_processes_equal_one(captioner: str, tmp_path: Path) -> None:
    """Weights are equal after one epoch of two steps; test_plugins.py checks two epochs of every part."""
    script = Path(__file__).with_name("parts_processes.py")
    parts = [part for part, name in WORKING if name == captioner]
    launch(script, captioner, tmp_path / "out.pt", *parts, processes=2)
    outcome: dict[str, Any] = torch.load(tmp_path / "out.pt", weights_only=True)
    for part in parts:
        assert outcome[part]["apart"] == [], f"{part}: both processes hold the same weights"
        if part == "AdversarialRetriever":
            continue  # each process draws its own candidates
        if captioner in BATCH_NORM and part not in WITHOUT_DROPOUT:
            continue  # batch norms of the backbone depend on the batch of a process
        expected = trained(part, captioner)[1].after_one_epoch
        torch.testing.assert_close(
            outcome[part]["weights"], expected, rtol=1e-3, atol=1e-5, msg=lambda m, p=part: f"{p}: {m}"
        )


def table() -> str:
    """The table in the documentation, as Markdown."""
    head = ["| part |" + "".join(f" {name} |" for name in CAPTIONERS), "|" + "---|" * (len(CAPTIONERS) + 1)]
    rows = [
        f"| {part} |" + "".join(" no |" if (part, name) in REFUSED else " yes |" for name in CAPTIONERS)
        for part in PARTS
    ]
    return "\n".join([*head, *rows])


def test_the_table_of_the_documentation_is_this_one() -> None:
    assert table() in DOCUMENT.read_text(encoding="utf-8"), f"expected in {DOCUMENT.name}:\n{table()}"
