"""ShowResults: at the end of a test a table, examples, a contact sheet, and the predictions as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.captioner import PairCaptioner
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.pairs import PairError
from lightning_idc.report.sheet import Card, contact_sheet
from lightning_idc.report.table import as_rich, summarise


class ShowResults(Callback):
    """Shows a person what a captioner says. Writes into the trainer's ``default_root_dir``.

    ``predictions.json``: id, caption, log_prob, references, change_type and facts of every pair; ``scores.json``: the
    table; ``contact_sheet.png``: the examples with their pictures.

    Args:
        examples: number of pairs that are shown, spread over the types of change.
        main_facts: facts that colour a caption on the sheet: green if all that apply are right, red if one is wrong.
    """

    def __init__(self, examples: int = 12, main_facts: Sequence[str] = ("type", "attributes")) -> None:
        self.examples = examples
        self.main_facts = list(main_facts)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not isinstance(pl_module, PairCaptioner):
            raise PairError(f"ShowResults shows what a PairCaptioner says; this is a {type(pl_module).__name__}")
        if not trainer.is_global_zero:
            return
        data = trainer.datamodule  # type: ignore[attr-defined]
        folder = Path(trainer.default_root_dir)
        folder.mkdir(parents=True, exist_ok=True)
        records = pl_module.predictions
        ours = isinstance(data, PairDataModule)
        facts = {r["id"]: data.facts("test", r["id"], r["caption"]) for r in records} if ours else {}
        write_json(folder / "predictions.json", [{**r, "facts": facts.get(r["id"], {})} for r in records])
        if pl_module.scores is None:
            print("no pair has references, so nothing was scored; the captions are in predictions.json", flush=True)
            return
        summary = summarise(records, pl_module.scores, facts)
        write_json(folder / "scores.json", summary.as_dict())
        self._print(summary, type(pl_module).__name__)
        chosen = spread(records, self.examples)
        for record in chosen:
            print(f"  {record['id']} ({record['change_type']})")
            print(f"    says  {record['caption']}\n    truth {record['references'][0]}")
        if ours and chosen:
            target = folder / "contact_sheet.png"
            self._sheet(data, chosen, facts, target)
            print(f"\npictures of these: {target}", flush=True)

    def _print(self, summary: Any, name: str) -> None:
        from rich.console import Console

        console = Console(width=None if os.isatty(1) else 110, highlight=False)
        console.print()
        total = f"{summary.counts['all']} pairs, {summary.references} references, scores x100"
        console.print(as_rich(summary, f"{name} on the test split: {total}"))
        for metric, reason in summary.notes.items():
            console.print(f"  {metric}: {reason}")
        console.print()

    def _sheet(self, data: PairDataModule, chosen: list[dict[str, Any]], facts: dict[str, Any], target: Path) -> None:
        source = data.pairs_of("test")
        place = {id: index for index, id in enumerate(source.ids)}
        cards = []
        for record in chosen:
            sample = source.load(place[record["id"]])
            known = [facts.get(record["id"], {}).get(name) for name in self.main_facts]
            right = all(known) if (known := [fact for fact in known if fact is not None]) else None
            title = f"{record['id']}  {record['change_type'] or ''}"
            cards.append(Card(sample.before, sample.after, title, record["caption"], record["references"][0], right))
        partial = target.with_suffix(".partial")
        contact_sheet(cards).save(partial, format="PNG")
        os.replace(partial, target)


def spread(records: list[dict[str, Any]], count: int) -> list[dict[str, Any]]:
    """``count`` records with references, taken in turn from each type of change, the same ones every time."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if record["references"]:
            groups.setdefault(str(record["change_type"]), []).append(record)
    generator = torch.Generator().manual_seed(0)
    queues = [
        [group[i] for i in torch.randperm(len(group), generator=generator).tolist()]
        for _, group in sorted(groups.items())
    ]
    chosen: list[dict[str, Any]] = []
    while len(chosen) < count and any(queues):
        for queue in queues:
            if queue and len(chosen) < count:
                chosen.append(queue.pop())
    return chosen


def write_json(target: Path, value: Any) -> None:
    """Write a JSON file as a whole or not at all."""
    partial = target.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=1, ensure_ascii=False), encoding="utf-8")
    os.replace(partial, target)
