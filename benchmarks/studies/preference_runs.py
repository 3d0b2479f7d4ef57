"""Trainings of ``preference_learning.py`` and ``reward_learning.py``: by likelihood, then further from that policy.

Three captioners:

- ``Run``: a PairTransformer on a frozen backbone that was trained to name the rendered objects, images of 64 pixels;
- ``EncoderRun``: the captioner of ``mdp.py`` with MDP at four depths, on a frozen EfficientNet-lite0 with ImageNet
  weights, images of 160 pixels;
- ``LanguageRun``: the captioner of ``mdp_smollm2.py`` with MDP at four depths, on the same encoder.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer, seed_everything

from benchmarks.harness import adamw, quiet_trainer
from benchmarks.studies.harness import Tested, load_or_test, test_captions
from benchmarks.studies.mdp_parts import TwoImages, mdp_at_all_depths, stored_stages
from benchmarks.studies.mdp_smollm2_parts import PrefixCaptioner, StartFrom, lora, save_between
from benchmarks.studies.wordings import PeopleCaptions
from lightning_idc.callbacks.forced_choice import ForcedChoice
from lightning_idc.data.synthetic import SyntheticPairs
from lightning_idc.data.synthetic.cells import SyntheticCells
from lightning_idc.data.transforms.robustness import Corruption, VagueCaptions
from lightning_idc.methods.adpo.adversarial_retriever import AdversarialRetriever
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.pair_transformer.module import PairTransformer
from lightning_idc.models.pretraining.cell_classification import ObjectNaming
from lightning_idc.models.schedules import WarmupCosine

CELLS, WIDTH, LORA_RANK, LORA_RATE = 5, 32, 16, 0.5
"""Settings of ``mdp.py`` and ``mdp_smollm2.py``; the learning rate of LoRA is relative to that of all else."""
ALIGNMENT_SEED = 1
"""``data_seed`` of the pairs of the alignment; that of all others is 0."""
FIGURES = ("forced_choice", "missed_change", "invented_change")
WORLDS: dict[str, tuple[float, Corruption | None]] = {
    "vague": (0.0, VagueCaptions(0.6)),
    "vague_sixth": (1 / 6, VagueCaptions(0.6)),
    "people": (0.0, PeopleCaptions(0.6)),
    "paraphrased": (0.0, PeopleCaptions(0.0)),
    "careful": (1 / 6, None),
    "half": (0.5, None),
}
"""Share of unchanged pairs, and what becomes of the training captions."""


class Run:
    """Training runs of one seed in one world.

    Args:
        args: command line.
        folder: folder of checkpoints; an existing backbone is reused.
        seed: seed of training.
        world: name of :data:`WORLDS`.
    """

    scenes: ClassVar[Mapping[str, Any]] = {}
    """Options of the rendered pairs."""

    def __init__(self, args: argparse.Namespace, folder: Path, seed: int, world: str) -> None:
        self.args, self.folder, self.seed, self.world = args, folder, seed, world
        self.unchanged, self.corruption = WORLDS[world]
        self.sizes: dict[str, Any] = dict(
            train_pairs=args.pairs,
            val_pairs=8,
            test_pairs=args.test_pairs,
            cache_dir=args.cache,
            progress=False,
            no_change=self.unchanged,
            **self.scenes,
        )

    def pairs(self, **options: Any) -> SyntheticPairs:
        """The pairs of this world; options of :class:`SyntheticPairs` replace those of the study."""
        return SyntheticPairs(**{**self.sizes, **options}, corruption=self.corruption)

    def trainer(self, epochs: int, callbacks: list[Callback], **options: Any) -> Trainer:
        seed_everything(self.seed, workers=True, verbose=False)
        return quiet_trainer(
            max_epochs=epochs,
            limit_val_batches=0,
            gradient_clip_val=1.0,
            callbacks=callbacks,
            default_root_dir=self.folder,
            **options,
        )

    def fit(
        self,
        model: LightningModule,
        data: LightningDataModule,
        epochs: int,
        callbacks: Sequence[Callback] = (),
        share: float = 1.0,
    ) -> Trainer:
        """Train; only a finished training is saved, by the caller, so that a stopped run does not use half of one.

        Args:
            model: trained model.
            data: its data.
            epochs: number of epochs.
            callbacks: callbacks of the training.
            share: share of the batches of an epoch.
        """
        trainer = self.trainer(epochs, list(callbacks), limit_train_batches=share)
        trainer.fit(model, data)
        return trainer

    def captioner(self, rate: float, **options: Any) -> PairCaptioner:
        """Captioner before a training.

        Args:
            rate: learning rate.
            options: options of the captioner.
        """
        return PairTransformer(
            freeze_backbone=True, dropout=0.0, optimizer=adamw(rate), schedule=WarmupCosine(0.1), **options
        )

    def parts(self) -> list[Callback]:
        """Callbacks that belong to the captioner, in all its trainings and tests."""
        return []

    def untrained(self) -> PairCaptioner:
        """Captioner before the training by likelihood."""
        look = self.folder / "look.ckpt"
        if not look.is_file():
            data = SyntheticCells(**{**self.sizes, "no_change": 0.0}, batch_size=64)
            seed_everything(self.seed, workers=True, verbose=False)  # the namer is made before its trainer
            namer = ObjectNaming(optimizer=adamw(1e-2))
            self.fit(namer, data, self.args.look_epochs).save_checkpoint(look)
        return self.captioner(1.5e-3, backbone_weights=str(look), captions_per_pair=3)

    def first_weights(self) -> list[Callback]:
        """Callbacks that load weights before the training by likelihood."""
        return []

    def supervised(self) -> str:
        """Checkpoint of the SFT policy."""
        policy = self.folder / f"sft-{self.world}.ckpt"
        if not policy.is_file():
            captioner = self.untrained()
            parts = [*self.parts(), *self.first_weights()]
            self.fit(captioner, self.pairs(), self.args.sft_epochs, parts).save_checkpoint(policy)
        return str(policy)

    def row(self, name: str, make: Callable[[], Tested]) -> Tested:
        """A row of this seed and world, from its file if it was trained before."""
        return load_or_test(self.folder / f"{name.replace('/', ' of ')}-{self.world}.json", make)

    def measured(self, captioner: PairCaptioner) -> Tested:
        said, scores = test_captions(self.trainer(1, [*self.parts(), ForcedChoice()]), captioner, self.pairs())
        return said, {name: scores[name] for name in FIGURES if name in scores}

    def policy(self, sft: str) -> Tested:
        """Captions and figures of the SFT policy."""
        return self.measured(self.captioner(self.args.rate, init_from=sft))

    def continued(self, sft: str, made: Callable[[], list[Callback]]) -> Tested:
        """Captions and figures after more training from the SFT policy."""
        callbacks = made()
        adversarial = any(isinstance(callback, AdversarialRetriever) for callback in callbacks)
        rates = {"addons.retriever": 10.0} if adversarial else None
        captioner = self.captioner(self.args.rate, init_from=sft, captions_per_pair=2, learning_rates=rates)
        epochs = self.args.epochs if callbacks else self.args.more_epochs
        self.fit(captioner, self.pairs(), epochs, [*self.parts(), *callbacks], self.args.share)
        return self.measured(captioner)

    def results(self, rows: dict[str, Callable[[], list[Callback]]]) -> dict[str, Tested]:
        """Captions and figures of each row."""
        sft = self.supervised()
        measurements = {"SFT": self.row("SFT", partial(self.policy, sft))}
        for name, callbacks in rows.items():
            measurements[name] = self.row(name, partial(self.continued, sft, callbacks))
        return measurements


class EncoderRun(Run):
    """Training runs of a captioner with MDP on a frozen encoder, whose weights are ``args.weights``."""

    scenes: ClassVar[Mapping[str, Any]] = {"render_size": 160, "things": (2, 3), "camera_jitter": 0.0}

    def captioner(self, rate: float, **options: Any) -> PairCaptioner:
        return self.on_encoder(TwoImages, rate, **options)

    def on_encoder(self, captioner: type[PairCaptioner], rate: float, **options: Any) -> PairCaptioner:
        """A captioner of a class that reads the tokens of the encoder."""
        weights = None if self.args.weights is None else str(self.args.weights)
        tokens = {"weights": weights, "cells": CELLS, "width": WIDTH}
        return captioner(**tokens, optimizer=adamw(rate), schedule=WarmupCosine(0.05), **options)

    def parts(self) -> list[Callback]:
        stored = self.folder.parent / f"features-{self.world}"  # the same for all seeds
        return [stored_stages(stored), mdp_at_all_depths()]

    def untrained(self) -> PairCaptioner:
        return self.captioner(2e-3, captions_per_pair=2)


class LanguageRun(EncoderRun):
    """Training runs of a captioner whose tokens are the prefix of the language model ``args.language_model``.

    The modules between encoder and language model are trained before, with the small captioner of ``mdp.py``. With
    ``args.align_epochs``, both this training and so many epochs of the language model precede SFT, on other pairs with
    careful captions, as a published vision-language model is aligned with images before it is fine-tuned.
    """

    scenes: ClassVar[Mapping[str, Any]] = {**EncoderRun.scenes, "batch_size": 8}

    def captioner(self, rate: float, **options: Any) -> PairCaptioner:
        options["learning_rates"] = {"language": LORA_RATE, **(options.get("learning_rates") or {})}
        return self.on_encoder(PrefixCaptioner, rate, language=self.args.language_model, **options)

    def parts(self) -> list[Callback]:
        return [*super().parts(), lora(LORA_RANK)]

    def first_pairs(self, **options: Any) -> SyntheticPairs:
        """Pairs of the trainings before SFT: those of the alignment, or without one those of this world."""
        if not self.args.align_epochs:
            return self.pairs(**options)
        return SyntheticPairs(**{**self.sizes, "no_change": 0.0, "data_seed": ALIGNMENT_SEED, **options})

    def warm_start(self) -> list[Callback]:
        """Callbacks that load the modules between encoder and language model, which are trained if they were not."""
        weights = self.folder / f"warm-{self.world}.pt"
        if not weights.is_file():
            small = super().captioner(2e-3, captions_per_pair=2)
            self.fit(small, self.first_pairs(batch_size=32), self.args.warm_epochs, super().parts())
            save_between(small, weights)
        return [StartFrom(weights)]

    def untrained(self) -> PairCaptioner:
        if not self.args.align_epochs:
            return super().untrained()
        aligned = self.folder / f"aligned-{self.world}.ckpt"
        if not aligned.is_file():
            parts = [*self.parts(), *self.warm_start()]
            trainer = self.fit(super().untrained(), self.first_pairs(), self.args.align_epochs, parts)
            trainer.save_checkpoint(aligned)
        return self.captioner(2e-3, init_from=str(aligned), captions_per_pair=2)

    def first_weights(self) -> list[Callback]:
        return [] if self.args.align_epochs else self.warm_start()
