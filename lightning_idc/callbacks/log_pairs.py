"""LogPairs: logs the images and captions of the same few pairs after every validation."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from lightning_idc.callbacks.results import results_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.report.results import Results, select_evenly
from lightning_idc.report.sheet import contact_sheet
from lightning_idc.report.table import Table
from lightning_idc.utils.bounds import PositiveInt, check_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import save

if TYPE_CHECKING:
    from PIL.Image import Image


class LogPairs(Callback):
    """Draws the same pairs with their current captions after each validation.

    Writes ``pairs/step-00001500.png`` below the trainer's ``default_root_dir``. Loggers receive the image as
    ``val/pairs`` and the captions as ``val/captions``: TensorBoard, Weights & Biases and MLflow show them, `CSVLogger`
    writes files into its folder.

    Args:
        pairs: number of pairs, spread over the types of change.
        main_facts: facts that decide the colour of a caption: green if all that apply are right, red if one is wrong.
    """

    def __init__(self, pairs: PositiveInt = 6, main_facts: Sequence[str] = ("type", "attributes")) -> None:
        check_arguments(LogPairs.__init__, locals())
        self.pairs = pairs
        self.main_facts = main_facts

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"LogPairs needs a PairCaptioner, not a {type(pl_module).__name__}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        results = results_of(trainer, pl_module, "val")
        chosen = select_evenly(results.records, self.pairs)
        if not chosen:
            return
        step, table = trainer.global_step, captions_table(results, chosen)
        for logger in trainer.loggers:
            log_table(logger, "val/captions", table, step)
        if results.data is None:
            return
        sheet = contact_sheet(results.cards(chosen, self.main_facts))
        target = Path(trainer.default_root_dir) / "pairs" / f"step-{step:08d}.png"
        save(target, lambda path: sheet.save(path, format="PNG"))
        for logger in trainer.loggers:
            log_image(logger, "val/pairs", sheet, step)


def log_image(logger: Logger, name: str, image: Image, step: int) -> None:
    """Log an image by the API of the logger; loggers without support for images are skipped.

    Args:
        logger: logger of the trainer.
        name: name of the image.
        image: image to log.
        step: training step.
    """
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_image(name, np.asarray(image), step, dataformats="HWC")
    elif isinstance(logger, WandbLogger):
        # without `step`: W&B drops data with a step before its latest one
        logger.log_image(name, [image], caption=[f"step {step}"])
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_image(logger.run_id, image, _file(name, step, "png"))
    elif isinstance(logger, CSVLogger):
        save(Path(logger.log_dir) / _file(name, step, "png"), lambda path: image.save(path, format="PNG"))


def log_table(logger: Logger, name: str, table: Table, step: int) -> None:
    """Log a table by the API of the logger; see :func:`log_image`."""
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_text(name, table.markdown(), step)
    elif isinstance(logger, WandbLogger):
        logger.log_text(name, columns=list(table.columns), data=[list(row) for row in table.rows])
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_text(logger.run_id, table.markdown(), _file(name, step, "md"))
    elif isinstance(logger, CSVLogger):
        file = Path(logger.log_dir) / _file(name, step, "md")
        save(file, lambda path: write_content(path, table.markdown() + "\n"))


def _file(name: str, step: int, ending: str) -> str:
    return f"{name}/step-{step:08d}.{ending}"


def captions_table(results: Results, records: list[dict[str, Any]]) -> Table:
    """Table of predicted captions and references."""
    rows = []
    for record in records:
        score = results.pair_scores.get(record["id"], {}).get("CIDEr-D")
        cells = [record["id"], record["caption"], next(iter(record["references"]), "")]
        rows.append([*cells, "" if score is None else f"{score:.0f}"])
    return Table(["pair", "caption", "reference", "CIDEr-D"], rows, text=3)
