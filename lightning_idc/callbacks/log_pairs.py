"""LogPairs: the same few pairs after every validation, so that one sees a captioner learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger, Logger, MLFlowLogger, TensorBoardLogger, WandbLogger

from lightning_idc.callbacks.show_results import results_of
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.report.results import Results, spread
from lightning_idc.report.sheet import contact_sheet
from lightning_idc.report.table import Table
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.files import fill
from lightning_idc.utils.outputs import save

if TYPE_CHECKING:
    from PIL.Image import Image


class LogPairs(Callback):
    """After each validation draws the same pairs with what is said of them now.

    Writes ``pairs/step-00001500.png`` below the trainer's ``default_root_dir``. Loggers get the picture as
    ``val/pairs`` and the captions as ``val/captions``: TensorBoard, Weights & Biases and MLflow on their own pages,
    `CSVLogger` as files of its folder.

    Args:
        pairs: how many, spread over the types of change.
        main_facts: facts that colour a caption: green if all that apply are right, red if one is wrong.
        difference: also draw the difference of the two pictures.
    """

    def __init__(
        self, pairs: int = 6, main_facts: Sequence[str] = ("type", "attributes"), difference: bool = False
    ) -> None:
        if pairs < 1:
            raise ConfigError(f"LogPairs is to draw {pairs} pairs; give it at least one, or leave it out")
        self.pairs = pairs
        self.main_facts = main_facts
        self.difference = difference

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"LogPairs shows what a PairCaptioner says; this is a {type(pl_module).__name__}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        results = results_of(trainer, pl_module, "val")
        chosen = spread(results.records, self.pairs)
        if not chosen:
            return
        step, table = trainer.global_step, captions_table(results, chosen)
        for logger in trainer.loggers:
            log_table(logger, "val/captions", table, step)
        if results.data is None:
            return
        sheet = contact_sheet(results.cards(chosen, self.main_facts), difference=self.difference)
        target = Path(trainer.default_root_dir) / "pairs" / f"step-{step:08d}.png"
        save(target, lambda path: sheet.save(path, format="PNG"))
        for logger in trainer.loggers:
            log_picture(logger, "val/pairs", sheet, step)


def log_picture(logger: Logger, name: str, picture: Image, step: int) -> None:
    """Give a picture to a logger, in its own way; loggers that take none are passed over.

    Args:
        logger: of the trainer.
        name: of the picture.
        picture: to show.
        step: of the training.
    """
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_image(name, np.asarray(picture), step, dataformats="HWC")
    elif isinstance(logger, WandbLogger):
        # without a step of its own: W&B drops what comes with an earlier one than its last
        logger.log_image(name, [picture], caption=[f"step {step}"])
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_image(logger.run_id, picture, _file(name, step, "png"))
    elif isinstance(logger, CSVLogger):
        save(Path(logger.log_dir) / _file(name, step, "png"), lambda path: picture.save(path, format="PNG"))


def log_table(logger: Logger, name: str, table: Table, step: int) -> None:
    """Give a table to a logger, in its own way; see :func:`log_picture`."""
    if isinstance(logger, TensorBoardLogger):
        logger.experiment.add_text(name, table.markdown(), step)
    elif isinstance(logger, WandbLogger):
        logger.log_text(name, columns=list(table.columns), data=[list(row) for row in table.rows])
    elif isinstance(logger, MLFlowLogger):
        logger.experiment.log_text(logger.run_id, table.markdown(), _file(name, step, "md"))
    elif isinstance(logger, CSVLogger):
        file = Path(logger.log_dir) / _file(name, step, "md")
        save(file, lambda path: fill(path, table.markdown() + "\n"))


def _file(name: str, step: int, ending: str) -> str:
    return f"{name}/step-{step:08d}.{ending}"


def captions_table(results: Results, records: list[dict[str, Any]]) -> Table:
    """What is said of pairs beside what is true."""
    rows = []
    for record in records:
        score = results.of_pairs.get(record["id"], {}).get("CIDEr-D")
        said = [record["id"], record["caption"], next(iter(record["references"]), "")]
        rows.append([*said, "" if score is None else f"{score:.0f}"])
    return Table(["pair", "says", "truth", "CIDEr-D"], rows, text=3)
