"""Parts of studies and clocks in ``benchmarks/`` that a wrong figure would come from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.training import quiet_trainer
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_idc.data.synthetic.descriptions import SyntheticDescriptions
from lightning_idc.methods.namc.module import NAMC

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):  # which the scripts set for themselves
        monkeypatch.setenv(name, "1")


@pytest.mark.usefixtures("benchmarks")
def test_shifts_of_the_noise_study_are_those_of_the_recipe() -> None:
    import yaml
    from noise import SHIFTS

    recipe = yaml.safe_load((BENCHMARKS.parent / "recipes" / "paper" / "namc_robustness.yaml").read_text())
    assert list(SHIFTS) == list(recipe["matrix"]["shift"])
    for name, options in recipe["matrix"]["shift"].items():
        made = SHIFTS[name]
        if made is None:
            assert not options
            continue
        corruption = options["base"]["data"]["init_args"]["corruption"]
        assert type(made()).__name__ == corruption["class_path"]
        given = corruption["init_args"]
        if "ratio" in given:
            assert vars(made())["ratio"] == given["ratio"]
        of_class = type(made())().splits
        assert made().splits == tuple(given.get("splits", of_class))


class Cached(LightningModule):
    """A product of matrices in every step of the first epoch, and a smaller one later, as with stored features."""

    def __init__(self) -> None:
        super().__init__()
        self.large, self.small = nn.Linear(64, 64, bias=False), nn.Linear(64, 8, bias=False)

    def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
        layer = self.large if self.trainer.current_epoch == 0 else self.small
        loss: Tensor = layer(batch[0]).sum()
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


@pytest.mark.usefixtures("benchmarks")
@pytest.mark.parametrize(("epochs", "width"), [(1, 64), (3, 8)])
def test_operations_are_those_of_a_step_once_features_are_stored(tmp_path: Path, epochs: int, width: int) -> None:
    from _steps import Clock, Stopwatch

    ticks = iter(range(1000))
    watch = Stopwatch(lambda: float(next(ticks)))
    loader = DataLoader(TensorDataset(torch.randn(8, 64)), batch_size=2)
    quiet_trainer("cpu", tmp_path, max_epochs=epochs, callbacks=[Clock(watch)]).fit(Cached(), loader)
    found = watch.found()
    assert len(found["seconds"]) == 4 * epochs
    assert found["flops"] == 2 * (2 * 2 * 64 * width)  # forward, and the gradient of the weight


@pytest.mark.usefixtures("benchmarks")
def test_the_oracle_hides_the_planted_words_and_no_others(tmp_path: Path) -> None:
    from _noise import MaskPlanted

    settings: dict[str, Any] = dict(train_pairs=6, val_pairs=1, test_pairs=1, render_size=16, progress=False)
    data = SyntheticDescriptions(0.4, 0.2, batch_size=6, cache_dir=tmp_path, hallucinations=0.5, **settings)
    source = data.source("train")
    model = NAMC(width=16, hidden=16, heads=2, captions_per_pair=1)
    seen: list[tuple[list[str], Tensor, Tensor]] = []

    class Watch(MaskPlanted):
        def build(self, host: LightningModule) -> Any:
            addon = super().build(host)
            original = addon.batch

            def batch(step: Any) -> Any:
                found = original(step)
                seen.append((found.ids, step.batch.tokens, found.tokens))
                assert torch.equal(found.caption_mask, step.batch.caption_mask & (found.tokens == step.batch.tokens))
                return found

            addon.batch = batch  # type: ignore[method-assign]
            return addon

    quiet_trainer("cpu", tmp_path, max_epochs=1, callbacks=[Watch(source)]).fit(model, data)
    vocabulary = model.vocabulary
    assert vocabulary is not None
    planted = dict(zip(source.ids, source.described, strict=True))
    hidden = 0
    for ids, before, after in seen:
        for id, plain, masked in zip(ids, before[:, 0], after[:, 0], strict=True):
            changed = (plain != masked).nonzero()[:, 0].tolist()
            assert [place - 1 for place in changed] == [i for i, wrong in enumerate(planted[id].wrong) if wrong]
            assert all(int(masked[place]) in vocabulary.special.never_said for place in changed)
            hidden += len(changed)
    assert hidden > 10
