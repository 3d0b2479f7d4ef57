"""ShowResults: prints a table and examples after a test, and writes predictions, metrics and a report."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from lightning_idc.callbacks.compare_results import constant_of
from lightning_idc.callbacks.results import evaluation_settings, origin_of, results_of
from lightning_idc.callbacks.unchanged_control import UnchangedControl, captions_of_identical_images
from lightning_idc.callbacks.write_predictions import line_of
from lightning_idc.metrics.protocols import protocol_named
from lightning_idc.metrics.results import METRICS, PREDICTIONS
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.models.distributed import all_gather_dict, all_gather_object
from lightning_idc.report.baselines import BaselineCheck, check_baselines
from lightning_idc.report.html import MAX_PAIRS, check_report, write_report
from lightning_idc.report.results import Results, select_evenly
from lightning_idc.report.summary import as_rich
from lightning_idc.utils.bounds import NonNegativeInt, check_arguments
from lightning_idc.utils.errors import ConfigError, IDCError
from lightning_idc.utils.files import write_content
from lightning_idc.utils.outputs import Output, json_text, saved
from lightning_idc.utils.text import plain

REPORT = "report.html"


class ShowResults(Callback):
    """Prints and writes the results of ``test``, ``validate`` and ``predict``.

    Writes into the trainer's ``default_root_dir``:

    - ``predictions.jsonl``: id, caption, log_prob, references, change_type, scores and facts, one pair per line (for
      ``predict``, `WritePredictions` writes this file),
    - ``metrics.json``: scores under the protocol with intervals, digests of data and weights, and the scores by type of
      change; a leaderboard reads this file,
    - ``report.html``: pairs with their images, to be sorted and searched in a browser (images of full size are in
      ``report_pictures/``).

    The terminal, ``metrics.json`` and the report also have baselines that do not see the change (a constant caption,
    and the captioner itself on pairs of identical images), the number of distinct captions, and a warning if the score
    is not above a baseline. The terminal also has those scores of the protocol that the table lacks. Facts that the
    data module judges are logged as ``test/fact/<name>``.

    Args:
        examples: number of pairs printed, spread over the types of change; 0 for none.
        report_pairs: maximum number of pairs in the report, spread over the types of change, up to 5,000; 0 for no
            report.
        protocol: scoring protocol of ``metrics.json``. When None, that of the benchmark's published tables, or ``coco``
            if the data have none. The table is always scored as ``coco``. A ``difference-list`` is judged by equal
            words and has its own baselines, as with ``lightning-idc score``; unchanged pairs need no reference.
        identical_pairs: number of test pairs that are captioned again with the first image in place of the second, as a
            baseline; 0 for none. With `UnchangedControl`, which captions all of them, its captions are used.
        overwrite: whether to replace files that this callback did not write.

    Raises:
        ConfigError: the model is not a PairCaptioner, or output files exist.
    """

    def __init__(
        self,
        examples: NonNegativeInt = 12,
        report_pairs: NonNegativeInt = 2000,
        protocol: str | None = None,
        identical_pairs: NonNegativeInt = 64,
        overwrite: bool = False,
    ) -> None:
        check_arguments(ShowResults.__init__, locals())
        self.protocol = None if protocol is None else protocol_named(protocol)
        self.examples = examples
        self.report_pairs = report_pairs
        self.identical_pairs = identical_pairs
        self.overwrite = overwrite
        self._identical: dict[str, str] = {}
        self._predicted: list[dict[str, Any]] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not isinstance(pl_module, PairCaptioner):
            raise ConfigError(f"ShowResults needs a PairCaptioner, not a {type(pl_module).__name__}")
        if stage != "fit" and trainer.is_global_zero:
            self._check_files(Path(trainer.default_root_dir), stage)
        # Lightning's own table would repeat the scores
        trainer.test_loop.verbose = trainer.validate_loop.verbose = False

    def _check_files(self, folder: Path, stage: str) -> None:
        """Check that the results can be written before the evaluation, which may take hours."""
        if stage != "predict":
            self._output(folder).check(PREDICTIONS, METRICS)
        if self.report_pairs:
            check_report(folder / REPORT, self.overwrite, option="ShowResults:")

    def _output(self, folder: Path) -> Output:
        # a separate owner name, so that the file of a prediction is not replaced
        return Output(folder, "ShowResults", self.overwrite, option="ShowResults:")

    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._identical = {}

    def on_test_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, *unused: Any
    ) -> None:
        assert isinstance(pl_module, PairCaptioner)
        if len(self._identical) * trainer.world_size < self.identical_pairs and not _control(trainer):
            self._identical |= captions_of_identical_images(pl_module, batch)

    def on_test_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        control = _control(trainer)
        identical = all_gather_dict(self._identical if control is None else control.captions)
        if trainer.is_global_zero:
            self._show(trainer, results_of(trainer, pl_module, "test"), identical)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # LogPairs shows results during training
        if trainer.state.fn == "validate" and trainer.is_global_zero:
            self._show(trainer, results_of(trainer, pl_module, "val"))

    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._predicted = []

    def on_predict_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int, *unused: Any
    ) -> None:
        labels = zip(outputs, batch.references, batch.change_types, strict=True)
        self._predicted += [{**record, "references": texts, "change_type": kind} for record, texts, kind in labels]

    def on_predict_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        unique = {record["id"]: record for part in all_gather_object(self._predicted) for record in part}
        self._predicted = []
        if trainer.is_global_zero:
            records = [unique[id] for id in sorted(unique)]
            self._show(trainer, results_of(trainer, pl_module, "predict", records))

    def _show(self, trainer: Trainer, results: Results, identical: dict[str, str] | None = None) -> None:
        folder = Path(trainer.default_root_dir)
        if not results.records:
            say("no pair was captioned, so there are no results; check the split of the data and trainer.limit_*")
            return
        name = type(trainer.lightning_module).__name__
        check = None if results.split == "predict" else _check(trainer, results, identical)
        _print_table(name, results)
        metrics = {} if results.split == "predict" else self._metrics(trainer, results)
        _print_protocol(metrics, results)
        if check is not None:
            _print_baselines(check)
        _print_other_metrics(trainer, results)
        _print_examples(results, self.examples)
        if results.split != "predict":
            log_facts(trainer, results)
            self._save_results(results, folder, metrics, check)
        if self.report_pairs:
            self._save_report(trainer, name, results, folder / REPORT, check)

    def _save_results(
        self, results: Results, folder: Path, metrics: dict[str, Any], check: BaselineCheck | None
    ) -> None:
        files = {PREDICTIONS: "".join(map(line_of, results.predictions()))}
        if metrics:
            if check is not None:
                metrics["baseline_check"] = check.as_dict()
            files[METRICS] = json_text(metrics)

        def write() -> None:
            with self._output(folder) as draft:
                for name, text in files.items():
                    write_content(draft / name, text)

        saved(folder / PREDICTIONS, write)

    def _metrics(self, trainer: Trainer, results: Results) -> dict[str, Any]:
        values: dict[str, Any] = {}
        published = "coco" if results.data is None else results.data.protocol
        # if the published protocol selects none of the pairs, they are scored as coco
        protocols = [protocol_named(name) for name in dict.fromkeys((published, "coco"))]
        for protocol in [self.protocol] if self.protocol else protocols:
            # unchanged pairs without a reference are scored, too, under a difference-list
            if not values and results.scorable(protocol):
                try:
                    values = results.result(protocol, origin_of(trainer, results))
                except IDCError as error:  # the scores of the table must not be lost
                    say(f"no scores under {protocol.name} in {METRICS}: {error}")
        if results.summary is not None:
            values["summary"] = results.summary.as_dict()
        speeds = {name.partition("/")[2]: float(value) for name, value in trainer.callback_metrics.items()}
        speeds = {name: value for name, value in speeds.items() if name.endswith("_per_second")}
        if speeds:
            values["throughput"] = speeds
        return values

    def _save_report(
        self, trainer: Trainer, name: str, results: Results, target: Path, check: BaselineCheck | None
    ) -> None:
        records = results.records
        total = f"{len(records):,} pairs"
        limit = min(self.report_pairs, MAX_PAIRS)
        if len(records) > limit:
            ids = {record["id"] for record in select_evenly(records, limit)}
            records = [record for record in records if record["id"] in ids]
            total = f"{len(records):,} of {total}; all are in {PREDICTIONS}"
        data = "" if results.data is None else f" on {type(results.data).__name__}"

        def write() -> None:
            write_report(
                target,
                f"{name}{data}, {results.split} split",
                results.entries(records),
                results.summary,
                evaluation_settings(trainer, results),
                results.confusion,
                total,
                # large thumbnails for few pairs; small ones keep the file of many pairs light
                thumbnail=256 if len(records) <= 600 else 176,
                full_size=True,
                overwrite=self.overwrite,
                baselines=check,
            )

        if saved(target, write):
            say(f"report with all images, to be opened in a browser: {relative_path(target)}")


def _control(trainer: Trainer) -> UnchangedControl | None:
    """The trainer's `UnchangedControl`, if it has one."""
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]
    return next((callback for callback in callbacks if isinstance(callback, UnchangedControl)), None)


def _check(trainer: Trainer, results: Results, identical: dict[str, str] | None) -> BaselineCheck | None:
    captions = {record["id"]: record["caption"] for record in results.records}
    references = {record["id"]: record["references"] for record in results.records}
    return check_baselines(captions, references, constant_of(trainer), identical)


def _print_baselines(check: BaselineCheck) -> None:
    parts = [f"{name} {over.first:.1f}" for name, over in check.over.items()]
    say(f"  baselines, CIDEr-D: {', '.join(parts) or 'none'}; {check.counts}")
    if check.warning:
        say(f"  warning: {check.warning}")
    say("")


def log_facts(trainer: Trainer, results: Results) -> None:
    """Log the percentage of captions with each fact right as ``<split>/fact/<name>``."""
    if results.summary is None:
        return
    judged = results.summary.judged["all"]
    values = {f"{results.split}/fact/{name}": results.summary.rows["all"][name] for name in judged}
    for logger in trainer.loggers if values else []:
        logger.log_metrics(values, step=trainer.global_step)


def _print_table(name: str, results: Results) -> None:
    from rich.console import Console

    if results.summary is None:
        say("\nno pair has references, so there is no table of scores\n")
        return
    width = max(shutil.get_terminal_size().columns, 60)
    console = Console(width=width, highlight=False)
    title = f"{name} on the {results.split} split: {results.summary.total}, scores x100"
    console.print()
    console.print(as_rich(results.summary, title, width))
    if results.confusion is not None:
        console.print(f"  {results.confusion}", soft_wrap=True)
    console.print()


def _print_protocol(metrics: dict[str, Any], results: Results) -> None:
    """Print the scores of the protocol that the table lacks, each of all pairs, or of those that it is defined for."""
    protocol, scores = metrics.get("protocol", {"metrics": []}), metrics.get("scores", {})
    columns = [] if results.summary is None else results.summary.columns
    values = []
    for name in protocol["metrics"]:
        group = next((group for group in scores.values() if name in group), None)
        if name not in columns and group is not None:
            values.append(f"{name} {group[name]:.1f}")
    if values:
        say(f"  {protocol['name']}: {', '.join(values)}\n")


def _print_examples(results: Results, count: int) -> None:
    for record in select_evenly(results.records, count):
        say(f"  {record['id']}" + (f" ({record['change_type']})" if record["change_type"] else ""))
        say(f"    caption   {record['caption'] or '(empty)'}")
        if record["references"]:
            say(f"    reference {record['references'][0]}")


def _print_other_metrics(trainer: Trainer, results: Results) -> None:
    """Print other logged values: the loss, and metrics of callbacks."""
    printed = set() if results.scores is None else set(results.scores.values)
    parts = [(*name.partition("/"), value) for name, value in trainer.callback_metrics.items()]
    logged = {name: float(value) for split, _, name, value in parts if split == results.split and name not in printed}
    if others := [f"{name} {value:.4g}" for name, value in logged.items()]:
        say(f"  other metrics: {', '.join(others)}\n")


def say(text: str) -> None:
    """Print a line of untrusted text, with characters that the console can encode."""
    body = text.lstrip()
    indentation = text[: len(text) - len(body)]
    blank_line = "\n" if text.endswith("\n") else ""
    print(indentation + plain(body, sys.stdout.encoding or "utf-8") + blank_line, flush=True)


def relative_path(path: Path) -> str:
    """Path relative to the current folder if it is below it."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
