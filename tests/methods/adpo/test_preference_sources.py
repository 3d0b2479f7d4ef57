"""SideBySide, image preferences and error margins. Oracle: losses computed one source at a time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.tiny import TinyCaptioner, TinyPairs, TinySource
from helpers.training import QUIET, Losses, fit
from lightning.pytorch import Trainer

from lightning_idc.images.types import PairBatch, PairSample
from lightning_idc.methods.adpo.losses import dpo
from lightning_idc.methods.adpo.negatives import (
    FromData,
    Mixture,
    NegativeSource,
    RandomCaption,
    RejectedCaptions,
    SideBySide,
)
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.adpo.preference_losses import ipo
from lightning_idc.methods.policy.references import MovingAverage
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.utils.errors import ConfigError, DataError


class ConstantNegatives(NegativeSource):
    """Draws the same sentence for every pair and records the losses passed to ``update``."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.updates: list[tuple[torch.Tensor, torch.Tensor]] = []

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        return RejectedCaptions([[self.text] * count for _ in step.batch.ids])

    def update(self, negatives: RejectedCaptions, losses: torch.Tensor, present: torch.Tensor) -> None:
        self.updates.append((losses, present))


def trained_policy(folder: Path, **options: Any) -> tuple[TinyCaptioner, Any]:
    """Return a policy that differs from its reference, and its add-on."""
    model = TinyCaptioner(captions_per_pair=2, dropout=0.0, learning_rates={"language": 3.0})
    negatives = options.pop("negatives", None) or ConstantNegatives("it turned green")
    fit([PreferenceOptimization(negatives=negatives, **options)], folder, model, max_steps=4)
    addon: Any = addons_of(model)["preference"]
    addon._log = lambda *unused: None  # the run is over
    model.log = lambda *unused, **more: None  # type: ignore[assignment, method-assign]
    return model.eval(), addon


def batch_of(model: TinyCaptioner) -> PairBatch:
    return model.collate([TinySource(4, 0).load(i) for i in range(4)])


def test_side_by_side_weights_and_splits_the_losses(tmp_path: Path) -> None:
    sources = [ConstantNegatives("it turned green"), ConstantNegatives("now everything is red and blue")]
    model, addon = trained_policy(tmp_path, negatives=SideBySide(sources, [3.0, 1.0]))
    batch = batch_of(model)

    def loss(source: NegativeSource) -> float:
        addon._adversary = (source,)
        return float(addon.objective(TrainingStep(model, batch, 0, model.encode(batch))).detach())

    alone = [loss(ConstantNegatives(source.text)) for source in sources]
    both = loss(SideBySide(sources, [3.0, 1.0]))
    assert both == pytest.approx(0.75 * alone[0] + 0.25 * alone[1], rel=1e-5) and abs(alone[0] - alone[1]) > 1e-3
    assert loss(SideBySide(sources)) == pytest.approx(sum(alone) / 2, rel=1e-5)
    for source, expected in zip(sources, alone, strict=True):
        losses, present = source.updates[-1]
        assert losses.shape == present.shape == (4, 2) and float(losses.mean()) == pytest.approx(expected, rel=1e-5)
    with pytest.raises(ConfigError, match="cannot be a source of another combination"):
        Mixture([SideBySide(sources), ConstantNegatives("x")])


@pytest.mark.parametrize("kind", ["identical", "swapped"])
def test_image_preference_loss_equals_its_formula(kind: str, tmp_path: Path) -> None:
    model, addon = trained_policy(tmp_path, image_weight=2.0, other_images=kind)
    batch = batch_of(model)
    images = batch.images
    kinds: list[str | None] = [*batch.change_types]
    kinds[1] = "no_change"
    batch = replace(batch, change_types=kinds)
    other = images[:, [0, 0]] if kind == "identical" else images[:, [1, 0]]

    def ratio(images: torch.Tensor) -> torch.Tensor:
        twin = addon.reference.twin.eval()
        with torch.no_grad():
            features = [captioner.encode(replace(batch, images=images)) for captioner in (model, twin)]
            scores = [
                c.score(f, batch.tokens, batch.caption_mask) for c, f in zip((model, twin), features, strict=True)
            ]
        return scores[0] - scores[1]

    margins = addon.options.beta * (ratio(images) - ratio(other))
    expected = torch.nn.functional.softplus(-margins).mean(1)
    expected[1] = 0.0  # unchanged pairs are left out
    step = TrainingStep(model, batch, 0, model.encode(batch))
    with_image_loss = float(addon.objective(step).detach())
    addon.options = replace(addon.options, image_weight=0.0, other_images=None)
    without = float(addon.objective(TrainingStep(model, batch, 0, model.encode(batch))).detach())
    assert with_image_loss - without == pytest.approx(2 * float(expected.mean()), rel=1e-4)
    assert float(margins.abs().max()) > 1e-3
    with pytest.raises(ConfigError, match="expected one of identical, swapped"):
        PreferenceOptimization(other_images="mirrored")


@pytest.mark.slow
def test_image_preference_starts_at_the_reference_and_learns(tmp_path: Path) -> None:
    losses = Losses()
    model = TinyCaptioner(captions_per_pair=2, dropout=0.5, learning_rates={"language": 3.0, "vision": 3.0})
    fit([PreferenceOptimization(image_weight=1.0), losses], tmp_path, model, max_epochs=30)
    assert losses.values[0] == pytest.approx(2 * math.log(2), abs=1e-5) and losses.values[-1] < losses.values[0]
    assert float(model.trainer.callback_metrics["train/rewards/image_accuracies"]) == 1.0


class WrongPairs(TinyPairs):
    """Pairs with a rejected caption and the type of error in it."""

    def source(self, split: str) -> Any:
        class Source(TinySource):
            def load(self, index: int) -> PairSample:
                kind = ("color", "left/right")[index % 2]
                return replace(super().load(index), meta={"rejected": "it turned gray", "error_type": kind})

        return Source(16 if split == "train" else 7, 0 if split == "train" else 500)


def test_error_margins(tmp_path: Path) -> None:
    def first(margins: dict[str, float]) -> float:
        losses = Losses()
        negatives = FromData(error_margins=margins)
        fit(
            [PreferenceOptimization(loss=dpo, negatives=negatives), losses],
            tmp_path,
            data=WrongPairs(batch_size=16, seed=1),
            max_steps=1,
        )
        return losses.values[0]

    # M = 0 at the start, and half of the pairs have each type of error
    expected = (math.log(2) + math.log1p(math.exp(2.0))) / 2
    assert first({"color": 0.0, "left/right": 2.0}) == pytest.approx(expected, abs=1e-5)
    with pytest.raises(DataError, match=r"error_type is 'left/right'; error_margins has color"):
        first({"color": 1.0})


def test_moving_average_syncs_every_n_steps(tmp_path: Path) -> None:
    is_equal: list[bool] = []
    average = MovingAverage(decay=0.0, every=2)

    class Watch(Losses):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            is_equal.append(torch.equal(pl_module.net.head.weight, average.twin.net.head.weight))

    model = TinyCaptioner(captions_per_pair=2)
    fit([PreferenceOptimization(loss=ipo, reference=average), Watch()], tmp_path, model, max_steps=5)
    # TRL's ref_model_sync_steps: equal at the start and after every second step
    assert is_equal == [True, False, True, False, True]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (lambda pairs: ["it turned blue"] * pairs, r"4 rows of rejected captions, such as 'it turned blue'"),
        (lambda pairs: [["it turned blue"]] * pairs, r"4 rows of rejected captions, such as \['it turned blue'\]"),
        (lambda pairs: [["it turned blue"] * 2], r"1 rows of rejected captions"),
    ],
    ids=["texts", "one caption", "one pair"],
)
def test_rejects_negatives_of_the_wrong_shape(rows: Any, message: str, tmp_path: Path) -> None:
    """A string in place of a list of strings would be read as a list of its letters."""

    class WrongShape(NegativeSource):
        def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
            return RejectedCaptions(rows(len(step.batch.ids)))

    with pytest.raises(
        DataError,
        match=rf"WrongShape drew {message}.*expected a list of 2 captions, or a multiple of that, for each of 4 pairs",
    ):
        trained_policy(tmp_path, negatives=WrongShape())


class RejectedSource(TinySource):
    """Pairs with a rejected caption in their metadata."""

    def meta(self, index: int) -> dict[str, Any]:
        return {**super().meta(index), "rejected": ["a pin hole"]}

    def load(self, index: int) -> PairSample:
        return replace(super().load(index), meta=self.meta(index))


class RejectedPairs(TinyPairs):
    def source(self, split: str) -> TinySource:
        return RejectedSource(self.pairs if split == "train" else 7, 0 if split == "train" else 500)


def test_default_negatives_are_the_rejected_captions_of_the_data(tmp_path: Path) -> None:
    """Regression: rejected captions were silently ignored, and captions of other rows were used as negatives."""
    for data, kind in ((RejectedPairs(batch_size=4), FromData), (TinyPairs(batch_size=4), RandomCaption)):
        callback = PreferenceOptimization()
        trainer = Trainer(**QUIET, max_steps=2, callbacks=[callback], default_root_dir=tmp_path)
        trainer.fit(TinyCaptioner(), data)
        assert type(callback.negatives) is kind
        negatives = {row["negative"] for row in json.loads((tmp_path / "negatives.json").read_text()).values()}
        assert (negatives == {"a pin hole"}) is (kind is FromData)
