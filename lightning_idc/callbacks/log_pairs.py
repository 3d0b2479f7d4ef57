"""LogPairs: the same few pairs after every validation, so that one sees a captioner learn."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import TensorBoardLogger

from lightning_idc.callbacks.show_results import results_of
from lightning_idc.core.captioner import PairCaptioner
from lightning_idc.core.text import markdown
from lightning_idc.core.types import PairError
from lightning_idc.files import save
from lightning_idc.report.results import Results, spread
from lightning_idc.report.sheet import contact_sheet


class LogPairs(Callback):
    """After each validation draws the same pairs with what is said of them now.

    Writes ``pairs/step-00001500.png`` below the trainer's ``default_root_dir``; a TensorBoard logger gets the picture
    as ``val/pairs`` and the captions as ``val/captions``.

    Args:
        pairs: how many, spread over the types of change.
        main_facts: facts that colour a caption: green if all that apply are right, red if one is wrong.
        difference: also draw the difference of the two pictures.
    """

    def __init__(
        self, pairs: int = 6, main_facts: Sequence[str] = ("type", "attributes"), difference: bool = False
    ) -> None:
        if pairs < 1:
            raise PairError(f"LogPairs is to draw {pairs} pairs; give it at least one, or leave it out")
        self.pairs = pairs
        self.main_facts = main_facts
        self.difference = difference

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, PairCaptioner):
            raise PairError(f"LogPairs shows what a PairCaptioner says; this is a {type(pl_module).__name__}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.sanity_checking or not trainer.is_global_zero:
            return
        results = results_of(trainer, pl_module, "val")
        chosen = spread(results.records, self.pairs)
        if not chosen:
            return
        boards = [logger for logger in trainer.loggers if isinstance(logger, TensorBoardLogger)]
        for board in boards:
            board.experiment.add_text("val/captions", captions_table(results, chosen), trainer.global_step)
        if results.data is None:
            return
        sheet = contact_sheet(results.cards(chosen, self.main_facts), difference=self.difference)
        target = Path(trainer.default_root_dir) / "pairs" / f"step-{trainer.global_step:08d}.png"
        save(target, lambda path: sheet.save(path, format="PNG"))
        for board in boards:
            board.experiment.add_image("val/pairs", np.asarray(sheet), trainer.global_step, dataformats="HWC")


def captions_table(results: Results, records: list[dict[str, Any]]) -> str:
    """What is said of pairs beside what is true, as Markdown in which captions are text, never markup."""
    lines = ["| pair | says | truth | CIDEr-D |", "| --- | --- | --- | ---: |"]
    for record in records:
        score = results.of_pairs.get(record["id"], {}).get("CIDEr-D")
        cells = [record["id"], record["caption"], next(iter(record["references"]), "")]
        lines.append(f"| {' | '.join(map(markdown, cells))} | {'' if score is None else f'{score:.0f}'} |")
    return "\n".join(lines)
