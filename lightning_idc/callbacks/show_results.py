"""ShowResults: after an evaluation a table, examples, a contact sheet, a report, and the predictions as JSON."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.data.datamodule import PairDataModule, Split
from lightning_idc.metrics.protocols import protocol_named
from lightning_idc.metrics.results import Origin
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_object
from lightning_idc.report.html import check_report, write_report
from lightning_idc.report.results import Results, spread
from lightning_idc.report.sheet import contact_sheet
from lightning_idc.report.summary import as_markdown, as_rich
from lightning_idc.utils.errors import ConfigError, IDCError
from lightning_idc.utils.files import fill
from lightning_idc.utils.outputs import check_file, save, save_json, saved
from lightning_idc.utils.text import plain


class ShowResults(Callback):
    """Shows a person what a captioner says, after ``test``, ``validate`` and ``predict``.

    Writes into the trainer's ``default_root_dir``: ``predictions.json`` (id, caption, log_prob, references,
    change_type, scores and facts of every pair), ``scores.json`` and ``scores.md`` (the table), ``result.json`` (scores
    under the protocol, with all that a leaderboard needs), ``contact_sheet.png`` (the examples with their pictures) and
    ``report.html`` (all pairs, to be sorted and searched in a browser; 5,000 to a file, greater pictures in
    ``report_pictures/``). Facts that the data module judges are logged as
    ``test/fact/<name>``.

    Args:
        examples: number of pairs that are shown, spread over the types of change; 0 for none.
        main_facts: facts that colour a caption on the sheet: green if all that apply are right, red if one is wrong.
        report_pairs: most pairs in the report, spread over the types of change; 0 for no report.
        difference: also draw the difference of the two pictures on the sheet.
        protocol: of ``result.json``; the table is always scored as ``coco``. A ``difference-list`` is judged by equal
            words and has its floors, as of ``lightning-idc score``; unchanged pairs count without a reference.
        overwrite: whether files may be replaced that this callback did not write.

    Raises:
        ConfigError: the model is not a PairCaptioner, or files of others are in the way.
    """

    def __init__(
        self,
        examples: int = 12,
        main_facts: Sequence[str] = ("type", "attributes"),
        report_pairs: int = 2000,
        difference: bool = False,
        protocol: str = "coco",
        overwrite: bool = False,
    ) -> None:
        self.protocol = protocol_named(protocol)
        self.examples = examples
        self.main_facts = list(main_facts)
        self.report_pairs = report_pairs
        self.difference = difference
        self.overwrite = overwrite
        self._said: list[dict[str, Any]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"ShowResults shows what a PairCaptioner says; this is a {type(pl_module).__name__}")
        if stage != "fit" and trainer.is_global_zero:
            self._check_files(Path(trainer.default_root_dir))
        # its own table of the same scores would follow
        trainer.test_loop.verbose = trainer.validate_loop.verbose = False

    def _check_files(self, folder: Path) -> None:
        """Refuse to work for hours for results that cannot be written."""
        for name in ("predictions.json", "scores.json", "scores.md", "result.json", "contact_sheet.png"):
            check_file("ShowResults:", folder / name, overwrite=self.overwrite)
        if self.report_pairs:
            check_report(folder / "report.html", self.report_pairs, self.overwrite, option="ShowResults:")

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            self._show(trainer, results_of(trainer, pl_module, "test"))

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # within training LogPairs shows how it goes
        if trainer.state.fn == "validate" and trainer.is_global_zero:
            self._show(trainer, results_of(trainer, pl_module, "val"))

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._said = []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        labels = zip(outputs, batch.references, batch.change_types, strict=True)
        self._said += [{**said, "references": texts, "change_type": kind} for said, texts, kind in labels]

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        unique = {record["id"]: record for part in all_gather_object(self._said) for record in part}
        self._said = []
        if trainer.is_global_zero:
            records = [unique[id] for id in sorted(unique)]
            self._show(trainer, results_of(trainer, pl_module, "predict", records))

    def _show(self, trainer: Trainer, results: Results) -> None:
        folder = Path(trainer.default_root_dir)
        records = results.records
        if not records:
            say("no pair was captioned, so there is nothing to show; look at the data's split and at trainer.limit_*")
            return
        name = type(trainer.lightning_module).__name__
        self._table(name, results)
        _say_others(trainer, results)
        chosen = spread(records, self.examples)
        for record in chosen:
            say(f"  {record['id']}" + (f" ({record['change_type']})" if record["change_type"] else ""))
            say(f"    says  {record['caption'] or '(nothing)'}")
            if record["references"]:
                say(f"    truth {record['references'][0]}")
        save_json(folder / "predictions.json", results.predictions(), self.overwrite)
        if results.summary is not None:
            markdown = as_markdown(results.summary)
            log_facts(trainer, results)
            table = results.summary.as_dict()
            confusion = None if results.confusion is None else dict(vars(results.confusion))
            save_json(folder / "scores.json", {**table, "confusion": confusion}, self.overwrite)
            save(folder / "scores.md", lambda path: fill(path, markdown), self.overwrite)
        # a prediction is not scored; unchanged pairs without a reference are, under a difference-list
        if results.split != "predict" and results.counted(self.protocol):
            self._result(trainer, name, results, folder / "result.json")
        if chosen and results.data is not None:
            sheet = contact_sheet(results.cards(chosen, self.main_facts), difference=self.difference)
            if save(folder / "contact_sheet.png", lambda path: sheet.save(path, format="PNG"), self.overwrite):
                say(f"\npictures of these: {shown(folder / 'contact_sheet.png')}")
        if self.report_pairs:
            self._report(trainer, name, results, folder / "report.html")

    def _result(self, trainer: Trainer, name: str, results: Results, target: Path) -> None:
        hparams = trainer.lightning_module.hparams
        origin = Origin(
            name,
            None if results.data is None else type(results.data).__name__,
            results.split,
            {key: hparams[key] for key in ("num_beams", "max_length") if key in hparams},
            int(os.environ["PL_GLOBAL_SEED"]) if "PL_GLOBAL_SEED" in os.environ else None,
            Path(trainer.ckpt_path).name if trainer.ckpt_path else None,
            None if not trainer.ckpt_path else selected_on(Path(trainer.ckpt_path)),
        )
        try:
            save_json(target, results.result(self.protocol, origin), self.overwrite)
        except IDCError as error:
            say(f"no {target.name}: {error}")

    def _table(self, name: str, results: Results) -> None:
        from rich.console import Console

        if results.summary is None:
            say("\nno pair has references, so there is no table of scores\n")
            return
        width = max(shutil.get_terminal_size().columns, 60)
        console = Console(width=width, highlight=False)
        total = f"{results.summary.counts['all']} pairs, {results.summary.references} references, scores x100"
        console.print()
        console.print(as_rich(results.summary, f"{name} on the {results.split} split: {total}", width))
        if results.confusion is not None:
            console.print(f"  {results.confusion}", soft_wrap=True)
        console.print()

    def _report(self, trainer: Trainer, name: str, results: Results, target: Path) -> None:
        records = results.records
        total = f"{len(records):,} pairs"
        if len(records) > self.report_pairs:
            picked = {record["id"] for record in spread(records, self.report_pairs)}
            records = [record for record in records if record["id"] in picked]
            total = f"{len(records):,} of {total}; all are in predictions.json"
        data = "" if results.data is None else f" on {type(results.data).__name__}"

        def write() -> None:
            write_report(
                target,
                f"{name}{data}, {results.split} split",
                results.entries(records),
                results.summary,
                about(trainer, results),
                results.confusion,
                total,
                # pictures that can be looked into while they are few, and a file that opens while they are many
                thumbnail=256 if len(records) <= 600 else 176,
                full_size=True,
                overwrite=self.overwrite,
            )

        if saved(target, write):
            say(f"all pairs, to be sorted and searched in a browser: {shown(target)}")


def results_of(
    trainer: Trainer, captioner: Any, split: Split, records: Sequence[dict[str, Any]] | None = None
) -> Results:
    """What the last evaluation of a captioner left behind.

    Args:
        trainer: whose data module knows facts and pictures, if it is a `PairDataModule`.
        captioner: a `PairCaptioner`.
        split: that was evaluated.
        records: captions of a prediction, which are not scored; those of the captioner when None.
    """
    data = getattr(trainer, "datamodule", None)  # absent where loaders were given
    return Results(
        captioner.predictions if records is None else records,
        captioner.scores if records is None else None,
        data if isinstance(data, PairDataModule) else None,
        split,
        captioner.hparams.get("no_change_captions") or [],
    )


def about(trainer: Trainer, results: Results) -> dict[str, str]:
    """How results were made, for a reader who was not there."""
    import lightning

    from lightning_idc import __version__

    captioner: Any = trainer.lightning_module
    size = sum(parameter.numel() for parameter in captioner.parameters())
    beams = captioner.hparams.get("num_beams", 1)
    facts = {
        "captioner": f"{type(captioner).__name__}, {size / 1e6:.2f} M parameters",
        "checkpoint": str(trainer.ckpt_path or "none; the weights in memory"),
        "decoding": "greedy" if beams == 1 else f"beam search, {beams} beams",
        "longest caption": f"{captioner.hparams.get('max_length')} tokens",
        "scores": "PTB tokens in lower case without punctuation; CIDEr-D is what pycocoevalcap calls CIDEr; all x100",
        "versions": f"lightning_idc {__version__}, lightning {lightning.__version__}, torch {torch.__version__}, "
        f"Python {platform.python_version()}",
    }
    if results.data is not None:
        facts["data"] = f"{type(results.data).__name__}, {results.split} split"
        facts["image size"] = str(results.data.image_size or "as in the data")
    if results.confusion is not None:
        facts["no change"] = "a caption says so in a sentence that the data use for unchanged pairs, or in other words"
    return facts


def selected_on(checkpoint: Path) -> str | None:
    """Split on whose values a checkpoint was chosen; None where it was not chosen, or that is unknown."""
    if not checkpoint.is_file() or checkpoint.stem.startswith("last"):
        return None
    try:
        # weights that nobody reads stay on the disk
        saved = torch.load(checkpoint, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # an old format, which cannot be mapped
        return None
    for name, state in saved.get("callbacks", {}).items():
        if name.startswith("ModelCheckpoint") and isinstance(state.get("monitor"), str):
            return str(state["monitor"]).split("/")[0]
    return None


def log_facts(trainer: Trainer, results: Results) -> None:
    """Send the shares of captions that get each fact right to the loggers, as ``<split>/fact/<name>``."""
    assert results.summary is not None
    judged = results.summary.judged["all"]
    values = {f"{results.split}/fact/{name}": results.summary.rows["all"][name] for name in judged}
    for logger in trainer.loggers if values else []:
        logger.log_metrics(values, step=trainer.global_step)


def _say_others(trainer: Trainer, results: Results) -> None:
    """Print what was measured and is no score of captions: the loss, and what callbacks logged."""
    known = set() if results.scores is None else set(results.scores.values)
    parts = [(*name.partition("/"), value) for name, value in trainer.callback_metrics.items()]
    logged = {name: float(value) for split, _, name, value in parts if split == results.split and name not in known}
    if others := [f"{name} {value:.4g}" for name, value in logged.items()]:
        say(f"  also measured: {', '.join(others)}\n")


def say(text: str) -> None:
    """Print a line of untrusted text; the console may lack its letters."""
    kept = text.lstrip()
    lead = text[: len(text) - len(kept)]
    tail = "\n" if text.endswith("\n") else ""
    print(lead + plain(kept, sys.stdout.encoding or "utf-8") + tail, flush=True)


def shown(path: Path) -> str:
    """A path as short as it can be given."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
