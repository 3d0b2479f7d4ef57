"""Gradient clipping works with a fused optimizer under mixed precision, and gives the steps of a plain optimizer."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs
from helpers.training import QUIET
from lightning.pytorch import Trainer, seed_everything

from lightning_idc.utils.errors import ConfigError


def train(fused: bool, precision: str = "bf16-mixed", checkpoint: Path | None = None, **options: Any) -> Any:
    seed_everything(1, verbose=False)
    # the clip takes effect: the gradients of the first steps are larger
    trainer = Trainer(precision=precision, **{"gradient_clip_val": 0.05, "max_epochs": 2, **QUIET, **options})
    model = TinyCaptioner(dropout=0.0, optimizer=partial(torch.optim.AdamW, lr=1e-2, fused=fused))
    trainer.fit(model, TinyPairs(batch_size=4, seed=1), ckpt_path=checkpoint, weights_only=True)
    return trainer, model


@pytest.mark.slow
def test_a_fused_optimizer_clips_as_a_plain_one_does() -> None:
    trainer, fused = train(True)
    assert all(group["fused"] for group in trainer.optimizers[0].param_groups), "the fused kernel is still used"
    _, plain = train(False)
    for (name, value), other in zip(fused.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(value, other, rtol=1e-3, atol=1e-5, msg=name)


def test_the_clip_binds() -> None:
    """Gradient norms exceed the limit and are clipped to it, so the test above depends on clipping."""
    seed_everything(1, verbose=False)
    norms: list[float] = []
    model = TinyCaptioner(dropout=0.0, optimizer=partial(torch.optim.AdamW, lr=1e-2, fused=True))
    clip = model.configure_gradient_clipping

    def noted(optimizer: Any, **options: Any) -> None:
        norms.append(float(torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])))
        clip(optimizer, **options)
        after = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
        assert float(after) <= 0.05 + 1e-4

    model.configure_gradient_clipping = noted  # type: ignore[method-assign]
    Trainer(precision="bf16-mixed", gradient_clip_val=0.05, max_epochs=1, **QUIET).fit(model, TinyPairs(batch_size=4))
    assert norms and max(norms) > 0.05


@pytest.mark.slow
def test_a_resumed_run_equals_an_uninterrupted_one(tmp_path: Path) -> None:
    trainer, _ = train(True)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    resumed_trainer, resumed = train(True, checkpoint=tmp_path / "two.ckpt", max_epochs=3)
    _, uninterrupted = train(True, max_epochs=3)
    assert resumed_trainer.global_step == 12
    for (name, value), other in zip(resumed.named_parameters(), uninterrupted.parameters(), strict=True):
        torch.testing.assert_close(value, other, rtol=0, atol=0, msg=name)


def test_other_runs_keep_their_optimizer_as_it_is() -> None:
    trainer, _ = train(True, "32-true", max_epochs=1)
    assert trainer.optimizers[0]._step_supports_amp_scaling
    trainer, _ = train(True, gradient_clip_val=None, max_epochs=1)
    assert trainer.optimizers[0]._step_supports_amp_scaling


class Compensated(torch.optim.SGD):
    """Stands for an optimizer from another package, which may train 16-bit weights."""


@pytest.mark.parametrize("precision", ["bf16-true", "16-true"])
def test_16_bit_weights_are_refused_under_plain_optimizers(precision: str) -> None:
    """bfloat16 has 8 bits of mantissa: a step below 1/256 of a weight changes nothing, and the loss stalls."""
    data = TinyPairs(batch_size=4, seed=1)
    with pytest.raises(ConfigError, match=r"trainable weights have 16 bits .*bf16-mixed"):
        Trainer(precision=precision, max_steps=0, **QUIET).fit(TinyCaptioner(), data)
    model = TinyCaptioner(optimizer=partial(Compensated, lr=0.1))
    Trainer(precision=precision, max_steps=0, **QUIET).fit(model, data)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16 if precision == "bf16-true" else torch.float16}
