"""LogRelevance: draws relevance maps of NoiseMasking during training."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.synthetic.descriptions import SyntheticDescriptions
from lightning_idc.data.transforms.pairs import Resize
from lightning_idc.methods.namc.noise_masking import NoiseMaskingAddon
from lightning_idc.methods.namc.relevance_maps import compute_relevance, draw_relevance_maps
from lightning_idc.models.addon import addons_of
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.outputs import save


class LogRelevance(Callback):
    """Draws relevance maps of the same pairs after each validation (NAMC's Figures 6 to 8).

    Writes files such as ``relevance/step-00001500.png`` in the trainer's ``default_root_dir``, and logs the image as
    ``val/relevance`` if there is a TensorBoard logger. Words that are synthetic noise are underlined.

    Args:
        pairs: number of pairs, the first ones of the validation split.
        of: name of the `NoiseMasking` callback.
    """

    def __init__(self, pairs: PositiveInt = 4, of: str = "noise_masking") -> None:
        check_arguments(LogRelevance.__init__, locals())
        self.pairs, self.of = pairs, of

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        addon = addons_of(pl_module).get(self.of)
        data = trainer.datamodule  # type: ignore[attr-defined]
        if not isinstance(addon, NoiseMaskingAddon) or not isinstance(data, PairDataModule):
            raise ConfigError(
                f"LogRelevance needs a NoiseMasking called {self.of!r} and a PairDataModule; add NoiseMasking to the "
                f"callbacks, or leave LogRelevance out"
            )
        source = data.pairs_of("val")
        maps = []
        was_training = addon.encoder.training
        addon.encoder.eval()
        for index in range(min(self.pairs, len(source))):
            sample = source.load(index)
            if not sample.captions:
                continue
            if data.image_size is not None:
                sample = Resize(data.image_size, data.interpolation)(sample, torch.Generator())
            wrong = data.planted("val", sample.id).wrong if isinstance(data, SyntheticDescriptions) else None
            images = torch.stack([sample.before, sample.after])
            maps.append((images, compute_relevance(addon.encoder, images, sample.captions[0], wrong)))
        addon.encoder.train(was_training)
        if not maps:
            return
        sheet = draw_relevance_maps(maps)
        target = Path(trainer.default_root_dir) / "relevance" / f"step-{trainer.global_step:08d}.png"
        save(target, lambda path: sheet.save(path, format="PNG"))
        for logger in trainer.loggers:
            if isinstance(logger, TensorBoardLogger):
                logger.experiment.add_image("val/relevance", np.asarray(sheet), trainer.global_step, dataformats="HWC")
