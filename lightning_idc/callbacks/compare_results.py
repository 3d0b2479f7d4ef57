"""CompareResults: one table of what several stages of a recipe reached."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.core.types import PairError
from lightning_idc.files import save, save_json

METRICS = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D", "forced_choice")


class CompareResults(Callback):
    """After the last test of a recipe prints its scores beside those of earlier test stages.

    Writes ``comparison.json`` and ``comparison.md`` into the trainer's ``default_root_dir``. List it last.

    Args:
        name: row of this test.
        others: folders of earlier test stages by the names of their rows, such as ``{DPO: ${run_dir}/test_dpo}``.
        metrics: columns; those that no stage measured are left out.
    """

    def __init__(self, name: str, others: dict[str, str], metrics: Sequence[str] = METRICS) -> None:
        self.name, self.others, self.metrics = name, others, list(metrics)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        rows = {row: metrics_of(Path(folder)) for row, folder in self.others.items()}
        rows[self.name] = {name: float(value) for name, value in trainer.callback_metrics.items()}
        columns = [name for name in self.metrics if any(f"test/{name}" in row for row in rows.values())]
        table = {
            row: {name: found[f"test/{name}"] for name in columns if f"test/{name}" in found}
            for row, found in rows.items()
        }
        text = as_table(table, columns)
        print(f"\n{text}\n", flush=True)
        folder = Path(trainer.default_root_dir)
        save_json(folder / "comparison.json", table)
        save(folder / "comparison.md", lambda path: path.write_text(text + "\n", encoding="utf-8"))


def metrics_of(folder: Path) -> dict[str, float]:
    """Metrics that a stage of a recipe left behind.

    Raises:
        PairError: the stage has not finished.
    """
    record = folder / "stage.json"
    if not record.is_file():
        raise PairError(f"there is no finished stage in {str(folder)!r} to compare with; run it first")
    return json.loads(record.read_text(encoding="utf-8"))["metrics"]


def as_table(rows: dict[str, dict[str, float]], columns: Sequence[str]) -> str:
    """Markdown table that also reads well as plain text."""
    cells = [["", *columns]]
    cells += [
        [row, *(f"{found[name]:.1f}" if name in found else "-" for name in columns)] for row, found in rows.items()
    ]
    widths = [max(len(line[place]) for line in cells) for place in range(len(cells[0]))]
    lines = [
        "| "
        + " | ".join([line[0].ljust(widths[0]), *(c.rjust(w) for c, w in zip(line[1:], widths[1:], strict=True))])
        + " |"
        for line in cells
    ]
    rule = "|" + "|".join(["-" * (widths[0] + 2), *("-" * (width + 1) + ":" for width in widths[1:])]) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])
