"""Direct preference optimisation on a captioner. Oracle: the loss written out with separate looks at the pair."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.plugins import GridCaptioner, GridPairs
from helpers.tiny import TinyCaptioner, TinyPairs, TinySource
from helpers.training import QUIET, Losses, assert_same, fit, host_state
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger

from lightning_idc.images.types import PairBatch
from lightning_idc.methods.adpo.negatives import (
    FromData,
    Mixture,
    NegativeSource,
    RandomCaption,
    RejectedCaptions,
    SameScene,
    SelfSampled,
)
from lightning_idc.methods.adpo.preference import PreferenceOptimization
from lightning_idc.methods.adpo.preference_addon import Preference, concatenate_captions
from lightning_idc.methods.adpo.preference_losses import SimPO, SmoothedDPO, ipo
from lightning_idc.methods.policy.references import NoReference, ReferencePolicy
from lightning_idc.models.addon import TrainingStep, addons_of
from lightning_idc.models.captions import pad_captions
from lightning_idc.utils.errors import ConfigError, DataError


class Spy(RandomCaption):
    """Remembers what it gave."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[tuple[list[list[str]], list[list[str]]]] = []

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        draw = super().draw(step, count, generator)
        self.given.append((step.batch.references, draw.texts))
        return draw


class Fixed(NegativeSource):
    """One sentence, whatever the pair."""

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        return RejectedCaptions([["it turned green"] * count for _ in step.batch.ids])


def test_the_policy_starts_at_the_reference_dropout_or_not(tmp_path: Path) -> None:
    losses = Losses()
    fit([PreferenceOptimization(), losses], tmp_path, TinyCaptioner(dropout=0.5), max_steps=1)
    assert losses.values == [pytest.approx(math.log(2), abs=1e-6)]
    with_dropout = Losses()
    fit([PreferenceOptimization(dropout=True), with_dropout], tmp_path, TinyCaptioner(dropout=0.5), max_steps=1)
    assert with_dropout.values != [pytest.approx(math.log(2), abs=1e-6)]


def test_one_pass_gives_the_loss_of_separate_looks(tmp_path: Path) -> None:
    start = fit([], tmp_path, max_steps=3, enable_checkpointing=True)
    start.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    callback = PreferenceOptimization(beta=0.3, negatives=Fixed())
    model = TinyCaptioner(init_from=str(tmp_path / "sft.ckpt"), captions_per_pair=2)
    fit([callback], tmp_path, model, max_steps=3)
    policy, reference = model.eval(), start.eval()
    source = TinySource(4, 0)
    batch = policy.collate([source.load(i) for i in range(4)])
    addon: Any = addons_of(policy)["preference"]
    addon._log = lambda *unused: None  # the run is over
    # with gradients, as in training: without them policy and reference would share the features
    found = addon.objective(TrainingStep(policy, batch, 0, policy.encode(batch)))

    def log_prob(model: Any, index: int, caption: str) -> float:
        alone = model.collate([source.load(index)])
        tokens, mask = pad_captions([model.tokenize([caption])], 1)
        with torch.no_grad():
            return float(model.score(model.encode(alone), tokens, mask))

    expected = 0.0
    for index in range(4):
        for chosen in source.captions(index)[:2]:
            ratio = [
                log_prob(policy, index, text) - log_prob(reference, index, text) for text in (chosen, "it turned green")
            ]
            expected += math.log1p(math.exp(-0.3 * (ratio[0] - ratio[1]))) / 8
    assert float(found.detach()) == pytest.approx(expected, rel=1e-5)
    assert expected != pytest.approx(math.log(2), abs=1e-4)


def test_references_are_never_rejected(tmp_path: Path) -> None:
    spy = Spy()
    fit([PreferenceOptimization(negatives=spy)], tmp_path)
    assert len(spy.given) == 8
    for references, rejected in spy.given:
        for own, others in zip(references, rejected, strict=True):
            assert len(others) == 2 and not set(own) & set(others)
    assert len({text for _, rows in spy.given for row in rows for text in row}) > 5


@pytest.mark.slow
def test_training_tells_true_from_false(tmp_path: Path) -> None:
    sft = fit([], tmp_path, max_epochs=10, enable_checkpointing=True)
    sft.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    losses = Losses()
    model = TinyCaptioner(init_from=str(tmp_path / "sft.ckpt"), learning_rates={"vision": 5.0, "language": 5.0})
    fit([PreferenceOptimization(), losses], tmp_path, model, max_epochs=8)
    assert sum(losses.values[-8:]) / 8 < 0.9 * math.log(2)
    metrics = model.trainer.callback_metrics
    assert metrics["train/rewards/margins"] > 0 and 0.5 <= metrics["train/rewards/accuracies"] <= 1
    assert metrics["train/kl_proxy"] > 0
    assert metrics["train/rewards/margins"] == pytest.approx(
        metrics["train/rewards/chosen"] - metrics["train/rewards/rejected"]
    )


def test_weight_zero_equals_absent(tmp_path: Path) -> None:
    absent = fit([], tmp_path)
    off = fit([PreferenceOptimization(weight=0.0)], tmp_path)
    assert_same(host_state(off), host_state(absent))


@pytest.mark.parametrize(
    "options", [{"loss": ipo}, {"loss": SmoothedDPO(0.2)}, {"length_normalise": True}, {"caption_weight": 0.5}]
)
def test_variants_train_differently(tmp_path: Path, options: dict[str, Any]) -> None:
    plain = fit([PreferenceOptimization()], tmp_path, max_steps=3)
    varied = fit([PreferenceOptimization(**options)], tmp_path, max_steps=3)
    assert not torch.equal(plain.net.head.weight, varied.net.head.weight)


class Unchanged(TinySource):
    """Every other pair is unchanged, and says so in two of three sentences."""

    def captions(self, index: int) -> list[str]:
        return super().captions(index) if index % 2 else list(STILL[:2])


STILL = ["nothing changed", "there is no change", "both are the same"]


class HalfUnchanged(TinyPairs):
    def source(self, split: str) -> TinySource:
        return Unchanged(self.pairs if split == "train" else 5, 0 if split == "train" else 500)

    def no_change_captions(self) -> list[str]:
        return STILL


class Alternating(NegativeSource):
    """Rejects "nothing changed" of the first half of a batch and a change of the second, and keeps what it hears."""

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        half = len(step.batch) // 2
        rows = [["Nothing changed" if place < half else "it turned green"] * count for place in range(len(step.batch))]
        return RejectedCaptions(rows)

    def update(self, draw: RejectedCaptions, losses: torch.Tensor, present: torch.Tensor) -> None:
        self.heard = present


def test_nothing_changed_is_held_at_the_reference_instead_of_compared_with_a_change(tmp_path: Path) -> None:
    start = fit([], tmp_path, data=HalfUnchanged(), max_steps=2, enable_checkpointing=True)
    start.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    source = Alternating()
    model = TinyCaptioner(init_from=str(tmp_path / "sft.ckpt"), captions_per_pair=1, dropout=0.0)
    callback = PreferenceOptimization(beta=0.3, anchor=2.0, negatives=source)
    policy = fit([callback], tmp_path, model, data=HalfUnchanged(), max_steps=3).eval()
    batch = policy.collate([Unchanged(4, 0).load(index) for index in range(4)])
    addon: Any = addons_of(policy)["preference"]
    addon._log = lambda *unused: None  # the run is over
    step = TrainingStep(policy, batch, 0, policy.encode(batch))
    # with gradients, as in training: without them policy and reference would share the features
    found = float(addon.objective(step).detach())
    shown = addon.compare(step, source.draw(step, 1, torch.Generator()).texts)
    # pair 0: both say that nothing changed; 1: change over no change; 2: no change over a change; 3: two changes
    chosen, rejected = (values[:, 0].tolist() for values in (shown.chosen_ratio, shown.rejected_ratio))
    compared = sum(math.log1p(math.exp(-0.3 * (chosen[place] - rejected[place]))) for place in (0, 3))
    held = 2.0 * 0.3 * (((chosen[1] - rejected[1]) ** 2 + rejected[1] ** 2) / 2 + chosen[2] ** 2)
    assert found == pytest.approx((compared + held) / 4, rel=1e-4) and held > 1e-6
    assert source.heard[:, 0].tolist() == [True, False, False, True], "a retriever is paid for comparisons alone"


def test_without_unchanged_pairs_or_a_reference_there_is_nothing_to_hold(tmp_path: Path) -> None:
    with_anchor = fit([PreferenceOptimization(anchor=5.0)], tmp_path, max_steps=3)
    without = fit([PreferenceOptimization(anchor=0.0)], tmp_path, max_steps=3)
    assert_same(dict(with_anchor.state_dict()), dict(without.state_dict()))
    free = {"loss": SimPO(), "beta": 2.0, "negatives": Alternating(), "reference": NoReference()}
    models = [
        fit([PreferenceOptimization(**free, anchor=anchor)], tmp_path, data=HalfUnchanged(), max_steps=3)
        for anchor in (0.0, 5.0)
    ]
    assert_same(*(dict(model.state_dict()) for model in models))
    with pytest.raises(ConfigError, match="anchor is -1"):
        PreferenceOptimization(anchor=-1.0)


def test_the_anchor_is_the_caption_loss_of_the_chosen(tmp_path: Path) -> None:
    model = fit([PreferenceOptimization(negatives=Fixed())], tmp_path, max_steps=2)
    batch = model.eval().collate([TinySource(4, 0).load(i) for i in range(4)])
    addon: Any = addons_of(model)["preference"]
    addon._log = lambda *unused: None  # the run is over
    step = TrainingStep(model, batch, 0, model.encode(batch))
    alone = addon.objective(step)
    addon.options = replace(addon.options, caption_weight=0.25)
    torch.testing.assert_close(addon.objective(step) - alone, 0.25 * model.caption_loss(step.features, batch))


def test_an_absent_chosen_caption_counts_nothing() -> None:
    tokens, mask = pad_captions([[[1, 5, 2], [1, 6, 7, 2]], [[1, 5, 2]]], 2)
    batch = PairBatch(torch.zeros(2, 2, 3, 8, 8, dtype=torch.uint8), tokens, mask, ["a", "b"], [[], []], [None, None])
    both, kept = concatenate_captions(batch, [[1, 8, 8, 8, 2]] * 4)
    assert both.shape == kept.shape == (2, 4, 5)
    assert kept.sum(-1).tolist() == [[2, 3, 4, 4], [2, 0, 4, 0]]
    assert both[1, 2].tolist() == [1, 8, 8, 8, 2]


def test_the_running_mean_of_log_ratios_counts_optimizer_steps(tmp_path: Path) -> None:
    """Four batches of one per optimizer step are remembered as long as one of four."""

    class Means(Callback):
        def __init__(self) -> None:
            self.values: list[float] = []

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *unused: Any) -> None:
            if not self.values or self.values[-1] != float(addons_of(pl_module)["preference"].chosen_ratio):
                self.values.append(float(addons_of(pl_module)["preference"].chosen_ratio))

    means = []
    for options in ({"batch_size": 4}, {"batch_size": 1, "accumulate_grad_batches": 4}):
        preference = PreferenceOptimization(negatives=FromData())
        means.append(Means())
        data = GridPairs(batch_size=options.pop("batch_size"), seed=1)
        model = fit([preference, means[-1]], tmp_path, GridCaptioner(), data=data, **options)
        assert addons_of(model)["preference"]._num_steps == model.trainer.global_step == 8
    assert means[0].values == pytest.approx(means[1].values, abs=1e-6) and len(means[0].values) == 8


def test_displacement_of_the_chosen_captions_is_warned_of_once(tmp_path: Path) -> None:
    model = fit([PreferenceOptimization(displacement_threshold=2.0)], tmp_path, max_steps=1)
    addon = addons_of(model)["preference"]
    assert isinstance(addon, Preference)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        addon._check_displacement(-1.9)
    with pytest.warns(UserWarning, match=r"2\.5 nats less likely.*caption_weight"):
        addon._check_displacement(-2.5)


@pytest.mark.slow
def test_a_run_whose_chosen_captions_fall_tells_so_once(tmp_path: Path) -> None:
    class Certain(ReferencePolicy):
        """Is sure of every caption, so that the policy looks as if it had become less so."""

        def score(self, step: TrainingStep, tokens: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return torch.zeros(mask.shape[:2])

    with pytest.warns(UserWarning, match="likelihood displacement") as told:
        # 4 steps an epoch are fewer than those between two looks
        fit([PreferenceOptimization(reference=Certain())], tmp_path, max_epochs=12)
    assert sum("likelihood displacement" in str(warning.message) for warning in told) == 1


def test_the_negatives_of_a_run_are_kept_for_reading(tmp_path: Path) -> None:

    fit([PreferenceOptimization(negatives=Fixed())], tmp_path)
    met = json.loads((tmp_path / "negatives.json").read_text())
    assert len(met) == 16
    assert met["000"]["negative"] == "it turned green" and met["000"]["positive"] in TinySource(16, 0).captions(0)


def test_the_negatives_of_a_plain_trainer_go_to_the_folder_of_its_logger(tmp_path: Path) -> None:
    fit([PreferenceOptimization(negatives=Fixed())], tmp_path, logger=CSVLogger(tmp_path), max_steps=1)
    (file,) = tmp_path.rglob("negatives.json")
    assert file.parent == tmp_path / "lightning_logs" / "version_0"


def test_resume_equals_uninterrupted_bit_for_bit(tmp_path: Path) -> None:
    whole = fit([PreferenceOptimization()], tmp_path, max_epochs=3)
    saver = ModelCheckpoint(tmp_path, filename="half", every_n_train_steps=6, save_top_k=-1)
    fit([PreferenceOptimization(), saver], tmp_path, max_steps=6, enable_checkpointing=True)
    torch.manual_seed(12345)
    # another start: the copy in the checkpoint is the reference, not what the resumed object was built with
    other = TinyCaptioner(captions_per_pair=2)
    resumed = fit([PreferenceOptimization()], tmp_path, other, max_epochs=3, ckpt_path=tmp_path / "half.ckpt")
    assert_same(dict(resumed.state_dict()), dict(whole.state_dict()))


def test_captions_of_the_same_scene(tmp_path: Path) -> None:
    spied: list[tuple[list[str], list[list[str]]]] = []

    class Watched(SameScene):
        def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
            draw = super().draw(step, count, generator)
            spied.append((step.batch.ids, draw.texts))
            return draw

    # pairs 000 to 009 are of scene 00, pairs 010 to 015 of scene 01; red, green and blue in turn
    fit([PreferenceOptimization(negatives=Watched(r"^(\d\d)\d$"))], tmp_path)
    assert spied
    captions = TinySource(16, 0)
    for ids, rows in spied:
        for id, row in zip(ids, rows, strict=True):
            scene = [c for i in range(16) if captions.ids[i][:2] == id[:2] for c in captions.captions(i)]
            assert set(row) <= set(scene) - set(captions.captions(int(id)))
    with pytest.raises(ConfigError, match="one scene"):
        SameScene(r"^(0)").setup(TinyPairs())
    with pytest.raises(ConfigError, match="0 groups"):
        SameScene("0")
    with pytest.raises(DataError, match="does not match the id"):
        SameScene("(x)").setup(TinyPairs())


def test_what_cannot_be_is_told(tmp_path: Path) -> None:
    for options in ({"beta": 0}, {"beta": math.nan}, {"caption_weight": -1.0}, {"image_weight": -1.0}):
        ((name, value),) = options.items()
        with pytest.raises(ConfigError, match=f"{name} is {value}"):
            PreferenceOptimization(**options)
    for sampling, told in (
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5; .* at most 1"),
    ):
        with pytest.raises(ConfigError, match=told):
            SelfSampled(**sampling)
    model = TinyCaptioner(vocabulary=["<pad>", "<bos>", "<eos>", "<unk>", "red"], max_length=4)
    loader = torch.utils.data.DataLoader([0])
    with pytest.raises(ConfigError, match="the trainer has none"):
        Trainer(callbacks=[PreferenceOptimization()], max_steps=1, enable_checkpointing=False, **QUIET).fit(
            model, loader
        )


# ---- sources of negatives --------------------------------------------------------------------------------


class Preferred(TinySource):
    """Pairs whose meta holds a rejected caption and how bad it is."""

    def load(self, index: int) -> Any:
        sample = super().load(index)
        sample.meta |= {"rejected": [f"wrong of {sample.id}"], "worse": float(sample.id)}
        return sample


class PreferredPairs(TinyPairs):
    def source(self, split: str) -> Any:
        return Preferred(self.pairs if split == "train" else 7, 0 if split == "train" else 500)


class Heard(NegativeSource):
    """One sentence, and a memory of what it heard."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.heard: list[tuple[RejectedCaptions, torch.Tensor, torch.Tensor]] = []

    def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
        return RejectedCaptions([[self.text] * count for _ in step.batch.ids])

    def update(self, draw: RejectedCaptions, losses: torch.Tensor, present: torch.Tensor) -> None:
        self.heard.append((draw, losses, present))


def test_rejected_captions_of_the_data_with_their_margins(tmp_path: Path) -> None:
    plain, apart = Losses(), Losses()
    data = PreferredPairs(batch_size=4, seed=1)
    fit([PreferenceOptimization(negatives=FromData()), plain], tmp_path, data=data)
    met = json.loads((tmp_path / "negatives.json").read_text())
    assert {id: row["negative"] for id, row in met.items()} == {id: f"wrong of {id}" for id in met} and len(met) == 16
    negatives = FromData(margin="worse")
    fit([PreferenceOptimization(negatives=negatives), apart], tmp_path, data=PreferredPairs(batch_size=4, seed=1))
    # M = 0 at the start: the loss is that of minus the margin, which is the number of the pair
    assert plain.values[0] == pytest.approx(math.log(2), abs=1e-6) and apart.values[0] > 2
    with pytest.raises(DataError, match="no 'rejected' is in its meta"):
        fit([PreferenceOptimization(negatives=FromData())], tmp_path)


@pytest.mark.slow
def test_a_source_hears_what_its_draws_did_and_a_mixture_hears_of_its_own(tmp_path: Path) -> None:
    alone = Heard("it turned green")
    fit([PreferenceOptimization(negatives=alone)], tmp_path, max_steps=2)
    assert len(alone.heard) == 2
    draw, losses, present = alone.heard[0]
    assert losses.shape == present.shape == (4, 2) and not losses.requires_grad and len(draw.texts) == 4
    torch.testing.assert_close(losses, torch.full((4, 2), math.log(2)))
    first, second, never = Heard("one"), Heard("two"), Heard("three")
    mixture = Mixture([first, second, never], [3.0, 1.0, 0.0])
    fit([PreferenceOptimization(negatives=mixture)], tmp_path, max_epochs=10)
    counts = [sum(int(present.sum()) for _, _, present in source.heard) for source in (first, second, never)]
    assert sum(counts) == 10 * 16 * 2 and counts[2] == 0
    # a binomial of 320 draws; 4.5 standard deviations are 35
    assert abs(counts[0] - 240) < 35
    with pytest.raises(ConfigError, match="2 sources have the weights"):
        Mixture([first, second], [1.0])


@pytest.mark.slow
def test_the_policys_own_samples_are_negatives_unless_they_are_right(tmp_path: Path) -> None:
    seen: list[tuple[list[list[str]], list[list[str]]]] = []

    class Watched(SelfSampled):
        def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
            draw = super().draw(step, count, generator)
            seen.append((step.batch.references, draw.texts))
            return draw

    sft = fit([], tmp_path, max_epochs=25, enable_checkpointing=True)
    sft.trainer.save_checkpoint(tmp_path / "sft.ckpt")
    fit([PreferenceOptimization(negatives=Watched())], tmp_path, TinyCaptioner(init_from=str(tmp_path / "sft.ckpt")))
    pool = {text for i in range(16) for text in TinySource(16, 0).captions(i)}
    texts = [text for references, rows in seen for row in rows for text in row]
    for references, rows in seen:
        for own, row in zip(references, rows, strict=True):
            assert not set(own) & set(row)
    assert any(text not in pool for text in texts), "some are what nobody has written"


def test_figures_of_validation_have_the_names_of_trl(tmp_path: Path) -> None:
    callback = PreferenceOptimization(validation=True)
    model = fit([callback], tmp_path, max_epochs=1, limit_val_batches=1.0)
    names = {name for name in model.trainer.callback_metrics if name.startswith("val/")}
    assert {"val/rewards/chosen", "val/rewards/margins", "val/rewards/accuracies", "val/logps/chosen"} <= names
    assert "val/preference_loss" in names


def test_the_record_holds_the_caption_that_was_compared(tmp_path: Path) -> None:
    seen: dict[str, str] = {}

    class Watched(RandomCaption):
        def draw(self, step: TrainingStep, count: int, generator: torch.Generator) -> RejectedCaptions:
            for id, row in zip(step.batch.ids, step.batch.tokens[:, 0].tolist(), strict=True):
                seen[id] = step.module.vocabulary.decode(row[1:])
            return super().draw(step, count, generator)

    fit([PreferenceOptimization(negatives=Watched())], tmp_path, max_epochs=3)
    met = json.loads((tmp_path / "negatives.json").read_text())
    assert {id: row["positive"] for id, row in met.items()} == seen
    firsts = {f"{i:03d}": TinySource(16, 0).captions(i)[0] for i in range(16)}
    assert seen != firsts, "the compared caption is drawn; it is not the first reference"
