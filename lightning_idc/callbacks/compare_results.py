"""CompareResults: prints one table of the results of several test stages, with intervals and baselines."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from lightning_idc.callbacks.unchanged_control import CONTROL
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.source import PairSource
from lightning_idc.metrics.baselines import constant_caption
from lightning_idc.metrics.results import PREDICTIONS
from lightning_idc.report.comparison import (
    Captioned,
    ComparedCaptioner,
    Facts,
    compare_captioners,
    differences_table,
    facts_table,
)
from lightning_idc.report.table import Table
from lightning_idc.utils.errors import ConfigError, IDCError
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import save, save_json

METRICS = ("BLEU-4", "METEOR", "ROUGE-L", "CIDEr-D", "forced_choice")
RULES = """Intervals: 95 %, paired bootstrap over test pairs; they do not include the variation over training seeds.
"not decided": the interval contains 0. Baselines: one caption, chosen on the training references, for every pair; the
captions shuffled among pairs; and the captions where the second image equals the first, whose facts have a line of
their own. "below the baseline": not above each of these by an interval above 0."""


class CompareResults(Callback):
    """Prints the scores of the last test of a recipe together with those of earlier test stages.

    Writes ``comparison.json`` and ``comparison.md`` into the trainer's ``default_root_dir``. List it last, after
    `ShowResults`: if every stage has ``predictions.jsonl``, each row is compared pair by pair with the previous row and
    with baselines that do not see the change (`UnchangedControl` adds the third of these).

    Args:
        name: name of the row of this test.
        others: folder of each earlier test stage by the name of its row, such as ``{DPO: ${run_dir}/test_dpo}``.
        metrics: columns; metrics that no stage computed are left out.
    """

    def __init__(self, name: str, others: dict[str, str], metrics: Sequence[str] = METRICS) -> None:
        self.name, self.others, self.metrics = name, others, list(metrics)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not trainer.is_global_zero:
            return
        folder = Path(trainer.default_root_dir)
        metrics = {row: metrics_of(Path(other)) for row, other in self.others.items()}
        metrics[self.name] = {name: float(value) for name, value in trainer.callback_metrics.items()}
        columns = [name for name in self.metrics if any(f"test/{name}" in row for row in metrics.values())]
        table: dict[str, dict[str, Any]] = {
            row: {name: values[f"test/{name}"] for name in columns if f"test/{name}" in values}
            for row, values in metrics.items()
        }
        text = scores_table(table, columns)
        folders = {**{row: Path(other) for row, other in self.others.items()}, self.name: folder}
        if all((folder_of_row / PREDICTIONS).is_file() for folder_of_row in folders.values()):
            rows = self._compared(trainer, folders)
            for row in rows:
                table[row.name]["compared"] = row.as_dict()
            facts = f"\n\n{facts_table(rows)}" if any(row.facts for row in rows) else ""
            text = f"{text}\n\n{differences_table(rows)}{facts}\n\n{RULES}"
        print(f"\n{text}\n", flush=True)
        save_json(folder / "comparison.json", table)
        save(folder / "comparison.md", lambda path: write_content(path, text + "\n"))

    def _compared(self, trainer: Trainer, folders: dict[str, Path]) -> list[ComparedCaptioner]:
        references: dict[str, list[str]] = {}
        captioned = {}
        data = getattr(trainer, "datamodule", None)  # absent if loaders were passed
        for name, folder in folders.items():
            with (folder / PREDICTIONS).open(encoding="utf-8") as lines:
                records = [json.loads(line) for line in lines]
            references = {record["id"]: record["references"] for record in records}
            control = folder / CONTROL
            identical = json.loads(control.read_text(encoding="utf-8")) if control.is_file() else {}
            captioned[name] = Captioned(
                captions={record["id"]: record["caption"] for record in records},
                identical=identical,
                facts={record["id"]: record["facts"] for record in records},
                identical_facts=facts_of(data, identical) if isinstance(data, PairDataModule) else {},
            )
        return compare_captioners(captioned, references, constant_of(trainer))


def constant_of(trainer: Trainer) -> str | None:
    """Constant caption selected on the training split; None, with a warning, without training captions."""
    data = getattr(trainer, "datamodule", None)  # absent if loaders were passed
    try:
        return constant_caption(captions_of(data.pairs_of("train")) if isinstance(data, PairDataModule) else [])
    except IDCError as error:  # a test needs no training split
        rank_zero_warn(f"no baseline of a constant caption: {error}")
        return None


def facts_of(data: PairDataModule, captions: Mapping[str, str]) -> Facts:
    """Facts of captions of the test pairs, by pair id."""
    return {id: data.facts("test", id, caption) for id, caption in captions.items()}


def captions_of(source: PairSource, limit: int = 5000) -> list[list[str]]:
    """Captions of at most ``limit`` evenly spaced pairs of a split."""
    step = max(1, len(source) // limit)
    return [source.captions(index) for index in range(0, len(source), step)]


def metrics_of(folder: Path) -> dict[str, float]:
    """Metrics of a finished stage of a recipe.

    Raises:
        ConfigError: the stage has not finished.
    """
    record = folder / "stage.json"
    if not record.is_file():
        raise ConfigError(f"there is no finished stage in {str(folder)!r} to compare with; run it first")
    return json.loads(record.read_text(encoding="utf-8"))["metrics"]


def scores_table(rows: dict[str, dict[str, float]], columns: Sequence[str]) -> str:
    """Table of scores, with a dash for missing ones."""
    cells = [[row, *(f"{v[name]:.1f}" if name in v else "-" for name in columns)] for row, v in rows.items()]
    return Table(["", *columns], cells).markdown()
