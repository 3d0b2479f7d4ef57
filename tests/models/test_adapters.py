"""Guarantees of every adapter: strict in checkpoints, rebuilt without a Trainer, switched off by one call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import Shift, TinyCaptioner, TinyPairs, TinySource
from helpers.training import QUIET, assert_same, fit
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor

from lightning_idc.images.types import PairBatch
from lightning_idc.models.adapter_callback import AdapterCallback
from lightning_idc.models.loading import load_captioner
from lightning_idc.utils.errors import ConfigError


def shift(name: str = "shift", **options: Any) -> AdapterCallback:
    return AdapterCallback(name, Shift, **options)


def tiny(**options: Any) -> TinyCaptioner:
    return TinyCaptioner(dropout=0.0, optimizer=lambda groups: torch.optim.AdamW(groups, lr=0.05), **options)


def batch_for(model: TinyCaptioner) -> PairBatch:
    return model.collate([TinySource(4, 700).load(i) for i in range(4)])


def scores(model: TinyCaptioner) -> Tensor:
    batch = batch_for(model)
    with torch.no_grad():
        return model.eval().score(model.encode(batch), batch.tokens, batch.caption_mask)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("adapted")
    model = tiny(learning_rates={"adapters.shift": 2.0})
    fit([shift()], folder, model, max_epochs=3)
    model.trainer.save_checkpoint(folder / "a.ckpt")
    assert model.adapters["shift"].shift.abs().max() > 0.01
    groups = {group["name"]: group for group in model.trainer.optimizers[0].param_groups}
    assert groups["adapters.shift"]["lr"] == 0.1 and len(groups["adapters.shift"]["params"]) == 2
    return folder / "a.ckpt"


def test_an_adapter_does_not_move_the_host_s_random_numbers(tmp_path: Path) -> None:
    plain, adapted = tiny(), tiny()
    fit([], tmp_path, plain, max_epochs=0)
    fit([shift()], tmp_path, adapted, max_epochs=0)
    own = {key: value for key, value in adapted.state_dict().items() if not key.startswith("adapters.")}
    assert_same(own, dict(plain.state_dict()))


@pytest.mark.slow
def test_it_is_rebuilt_on_load_without_a_trainer(trained: Path, tmp_path: Path) -> None:
    saved = torch.load(trained, weights_only=True)
    again = load_captioner(trained)
    assert_same(dict(again.state_dict()), saved["state_dict"])
    assert torch.equal(again.adapters["shift"].shift, saved["state_dict"]["adapters.shift.shift"])
    assert not torch.equal(scores(again), _without(again))
    again.save_pretrained(tmp_path / "folder")
    assert torch.equal(scores(TinyCaptioner.from_pretrained(tmp_path / "folder")), scores(again))


def _without(model: Any) -> Tensor:
    with model.disable_adapters():
        return scores(model)


def test_a_test_without_the_callback_still_has_it(trained: Path) -> None:
    fresh = tiny()
    Trainer(**QUIET).test(fresh, TinyPairs(), ckpt_path=trained, verbose=False)
    assert torch.equal(scores(fresh), scores(load_captioner(trained)))


def test_weights_of_an_adapter_that_the_checkpoint_lacks_are_missed(tmp_path: Path) -> None:
    plain = tiny()
    fit([], tmp_path, plain, max_epochs=1)
    plain.trainer.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.raises(RuntimeError, match=r"adapters\.shift\.shift"):
        Trainer(**QUIET, callbacks=[shift()]).test(tiny(), TinyPairs(), ckpt_path=tmp_path / "plain.ckpt")
    # a warm start can add an adapter
    warm = tiny(init_from=str(tmp_path / "plain.ckpt"))
    fit([shift()], tmp_path, warm, max_epochs=0)
    assert torch.equal(scores(warm), scores(plain))


def test_a_warm_start_keeps_adapters_and_adds_others(trained: Path, tmp_path: Path) -> None:
    warm = tiny(init_from=str(trained))
    fit([shift(), shift("second")], tmp_path, warm, max_epochs=0)
    assert list(warm.adapters) == ["shift", "second"] == list(warm.hparams["adapters"])
    start = load_captioner(trained)
    assert torch.equal(scores(warm), scores(start))
    assert torch.equal(_without(warm), _without(start))


@pytest.mark.slow
@pytest.mark.parametrize("merges", [False, True])
def test_settled_adapters_are_what_switching_off_leads_back_to(merges: bool, tmp_path: Path) -> None:
    first = tiny()
    fit([shift(merges=merges)], tmp_path, first, max_epochs=3)
    first.trainer.save_checkpoint(tmp_path / "first.ckpt")
    second = tiny(init_from=str(tmp_path / "first.ckpt"), merge_adapters=True)
    fit([shift("again")], tmp_path, second, max_epochs=0)
    assert list(second.adapters) == (["again"] if merges else ["shift", "again"])
    torch.testing.assert_close(scores(second), scores(first))
    second.net.requires_grad_(False)
    fit([shift("again")], tmp_path, second, max_epochs=2)
    assert second.trainable_non_adapter_parameters() == []
    assert not torch.allclose(scores(second), scores(first))
    torch.testing.assert_close(_without(second), scores(first))
    second.trainer.save_checkpoint(tmp_path / "second.ckpt")
    again = load_captioner(tmp_path / "second.ckpt")
    assert torch.equal(_without(again), _without(second))


def test_what_the_switch_does_not_undo_is_named(trained: Path) -> None:
    again = load_captioner(trained)
    assert again.trainable_non_adapter_parameters() == [name for name, _ in again.net.named_parameters()]


@pytest.mark.slow
def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    whole = fit([shift()], tmp_path, tiny(), max_epochs=3)
    saver = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=6, save_top_k=-1)
    fit([shift(), saver], tmp_path, tiny(), max_steps=6, enable_checkpointing=True)
    torch.manual_seed(12345)
    resumed = fit([shift()], tmp_path, tiny(), max_epochs=3, ckpt_path=tmp_path / "half.ckpt")
    assert_same(dict(resumed.state_dict()), dict(whole.state_dict()))


def test_one_name_for_two_adapters_is_refused(trained: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="give the new one another name"):
        fit([shift(merges=True)], tmp_path, tiny(init_from=str(trained)), max_epochs=0)


def test_an_adapter_needs_a_captioner(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="needs a PairCaptioner"):
        shift().setup(Trainer(**QUIET), LightningModule(), "fit")
