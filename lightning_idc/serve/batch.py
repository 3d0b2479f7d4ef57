"""Answers about many pairs of files, without captioning unchanged pairs; an interrupted run can be resumed."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import IO, Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
from torch.utils.data import DataLoader, Dataset

from lightning_idc.callbacks.write_predictions import check_part, line_of, prediction_key, records_of, remove_part
from lightning_idc.images.compare import ImageComparison, Tolerance, compare_files
from lightning_idc.images.input_spec import InputSpec
from lightning_idc.images.read import read_pair
from lightning_idc.images.resize import resize
from lightning_idc.images.types import PairSample
from lightning_idc.models.captioner import PairCaptioner
from lightning_idc.serve.answer import Answer
from lightning_idc.serve.answers import answer_pairs
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.serve.options import BatchOptions
from lightning_idc.serve.pairs import FilePair, Ignored
from lightning_idc.serve.rules_captioner import NAME, RulesCaptioner
from lightning_idc.synthesis.actors import ActorPool, connect
from lightning_idc.utils.errors import DataError, IDCError
from lightning_idc.utils.files import atomic_write, digest

_RETRIES = 3
"""Number of retries of a batch whose actor died."""


class FilePairs(Dataset[tuple[FilePair, PairSample | ImageComparison | str | None]]):
    """Dataset of pairs: a sample, the comparison if pixels are equal, or an error message if reading failed."""

    def __init__(self, pairs: Sequence[FilePair], spec: InputSpec, ignored: Ignored, gate: Tolerance | None) -> None:
        self.pairs, self.spec, self.ignored, self.gate = pairs, spec, ignored, gate

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[FilePair, PairSample | ImageComparison | str | None]:
        pair = self.pairs[index]
        try:
            return pair, self._read(pair)
        except IDCError as error:
            return pair, str(error)

    def _read(self, pair: FilePair) -> PairSample | ImageComparison | None:
        if pair.before is None or pair.after is None:
            return None
        # compare stored values, since conversion may lose differences in opacity, further bands or pages
        ignore = partial(self.ignored.mask, pair.id)
        comparison = None
        if self.gate is not None:
            comparison = compare_files(pair.before, pair.after, pair.id, ignore, self.gate.value)
            if comparison.pixels <= self.gate.pixels:
                return comparison
        before, after = read_pair(pair.before, pair.after, self.spec.options, pair.id)
        if self.ignored.parts:
            after = self.ignored.apply(pair.id, before, resize(after, _size(before)))
        sample = self.spec.read(before, after, pair.id)
        sample.meta["comparison"] = comparison
        return sample


def run_batch(
    model: ModelOptions, pairs: Sequence[FilePair], options: BatchOptions, out: Path, gate: Tolerance | None
) -> tuple[PairCaptioner | RulesCaptioner, list[dict[str, Any]]]:
    """Answer pairs, and append each answer to ``<out>.part`` immediately, so that the run can be resumed.

    Args:
        model: options of the captioner.
        pairs: pairs of image files.
        options: options of the run.
        out: output file, written later by the caller.
        gate: tolerance within which a pair is unchanged and not captioned; None captions every pair.

    Returns:
        The captioner, and records in the order of the pairs.

    Raises:
        DataError: there is an unfinished run of another captioner or of other pairs.
    """
    captioner = model.open_describer()
    part = out.with_name(f"{out.name}.part")
    ids = [pair.id for pair in pairs]
    # images in other folders often have the same names
    files = [str(path.absolute()) for pair in pairs for path in (pair.before, pair.after) if path is not None]
    decisive = [*ids, *files, str((gate, options.where, list(options.ignore)))]
    key = digest(NAME, *decisive) if isinstance(captioner, RulesCaptioner) else prediction_key(captioner, decisive)
    done = _resumed_answers(part, key)
    if done:
        print(f"{len(done)} of {len(pairs)} pairs were answered before; going on with the others", file=sys.stderr)
    part.parent.mkdir(parents=True, exist_ok=True)
    if not done:
        atomic_write(part, line_of({"prediction": key}))
    with part.open("a", encoding="utf-8") as file, _progress(len(pairs), len(done)) as advance:
        left = [pair for pair in pairs if pair.id not in done]
        on_ray = options.engine == "ray"
        batches = answered_on_ray(model, left, options, gate) if on_ray else answered(captioner, left, options, gate)
        for records in batches:
            _append(file, records)
            done.update({record["id"]: record for record in records})
            advance(len(records))
    return captioner, [done[name] for name in ids]


def answered(
    captioner: PairCaptioner | RulesCaptioner,
    pairs: Sequence[FilePair],
    options: BatchOptions,
    gate: Tolerance | None,
    prompt: str | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Answers batch by batch, one record per pair.

    Args:
        captioner: captioner or rules.
        pairs: pairs of image files.
        options: options of the run.
        gate: tolerance within which a pair is unchanged and not captioned; None captions every pair.
        prompt: prompt for each pair; that of the captioner when None.

    Raises:
        ConfigError: the batch size or the number of workers is invalid.
    """
    dataset = FilePairs(pairs, captioner.input_spec, Ignored(options.ignore), gate)
    for batch in DataLoader(dataset, options.batch_size, num_workers=options.workers, collate_fn=list):
        yield list(_records(captioner, batch, options.where, prompt))


def answered_on_ray(
    model: ModelOptions, pairs: Sequence[FilePair], options: BatchOptions, gate: Tolerance | None
) -> Iterator[list[dict[str, Any]]]:
    """The batches of `answered`, computed by Ray actors, in order of completion; batches of dead actors are retried.

    Args:
        model: options of the captioner of each actor.
        pairs: pairs of image files.
        options: options of the run.
        gate: see `answered`.

    Raises:
        ConfigError: Ray is not installed.
    """
    size, ray = options.batch_size, connect(None)
    kind = ray.remote(num_cpus=1, num_gpus=options.gpus)(_Answerer)
    batches = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    create = partial(kind.remote, model, options, gate)
    return ActorPool(ray, create, options.actors, _RETRIES, "batch", batches.__getitem__).results(range(len(batches)))


class _Answerer:
    """Ray actor that answers batches."""

    def __init__(self, model: ModelOptions, options: BatchOptions, gate: Tolerance | None) -> None:
        self.model, self.options, self.gate = model, options, gate

    def prepare(self) -> None:
        self.captioner = self.model.open_describer()

    def work(self, pairs: Sequence[FilePair]) -> list[dict[str, Any]]:
        return [record for batch in answered(self.captioner, pairs, self.options, self.gate) for record in batch]


def finish(out: Path) -> None:
    """Remove the ``.part`` file after the output is written."""
    remove_part(out.with_name(f"{out.name}.part"))


def _resumed_answers(part: Path, key: str) -> dict[str, dict[str, Any]]:
    """Answers of an interrupted run, without an incomplete last line, failed pairs and pairs with newer images."""
    check_part(part)
    if not part.is_file():
        return {}
    since = part.stat().st_mtime_ns
    records = list(records_of(part))
    if not any("id" in record for record in records):
        return {}  # it stopped before its first answer
    if records[0].get("prediction") != key:
        raise DataError(
            f"{str(part)!r} holds answers of an unfinished run of another captioner, of other settings or of other "
            "pairs; finish that one, remove the file, or name another --out"
        )
    valid = [
        record
        for record in records
        if "id" not in record or (record["status"] != "failed" and _is_current(since, record))
    ]
    atomic_write(part, "".join(map(line_of, valid)))
    return {record["id"]: record for record in valid if "id" in record}


def _is_current(since: int, record: dict[str, Any]) -> bool:
    """Whether the images of an answer exist and were not modified since a time."""
    paths = [Path(record[side]) for side in ("before", "after") if record[side] is not None]
    return all(path.is_file() and path.stat().st_mtime_ns <= since for path in paths)


def _append(file: IO[str], records: Sequence[dict[str, Any]]) -> None:
    file.write("".join(map(line_of, records)))
    file.flush()


def _records(
    captioner: PairCaptioner | RulesCaptioner,
    batch: Sequence[tuple[FilePair, PairSample | ImageComparison | str | None]],
    where: bool,
    prompt: str | None,
) -> Iterator[dict[str, Any]]:
    """One record per pair of a batch, in its order."""
    samples = [sample for _, sample in batch if isinstance(sample, PairSample)]
    groups = _of_one_size(samples if prompt is None else captioner.with_prompt(samples, prompt))
    answers = {answer.id: answer for group in groups for answer in answer_pairs(captioner, group, where)}
    for pair, sample in batch:
        if isinstance(sample, PairSample):
            answer = answers[pair.id]
            comparison = sample.meta["comparison"]
            if answer.says_changed:
                yield _record(pair, "changed", answer, comparison)
            else:
                # an unchanged pair has no boxes
                yield _record(pair, "unchanged", replace(answer, boxes=[]), comparison)
        elif isinstance(sample, str):
            yield {**_record(pair, "failed"), "error": sample}
        else:
            missing = "new" if pair.before is None else "deleted" if pair.after is None else "unchanged"
            yield _record(pair, missing, comparison=sample)


def _record(
    pair: FilePair, status: str, answer: Answer | None = None, comparison: ImageComparison | None = None
) -> dict[str, Any]:
    return {
        "id": pair.id,
        "before": None if pair.before is None else str(pair.before),
        "after": None if pair.after is None else str(pair.after),
        "status": status,
        "described": answer is not None,
        "caption": None if answer is None else answer.caption,
        "log_prob": None if answer is None else answer.log_prob,
        "change_score": None if answer is None else answer.change_score,
        "compared": None if comparison is None else str(comparison),
        "boxes": [] if answer is None else answer.boxes,
        "error": None,
    }


def _of_one_size(samples: Sequence[PairSample]) -> list[list[PairSample]]:
    groups: dict[tuple[int, ...], list[PairSample]] = {}
    for sample in samples:
        groups.setdefault(tuple(sample.before.shape), []).append(sample)
    return list(groups.values())


def _size(image: torch.Tensor) -> tuple[int, int]:
    return int(image.shape[1]), int(image.shape[2])


@contextmanager
def _progress(total: int, done: int) -> Iterator[Callable[[int], None]]:
    """Progress bar in a terminal, nothing elsewhere."""
    console = Console(stderr=True)
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress("pairs", *columns, console=console, disable=not console.is_terminal) as bar:
        task = bar.add_task("pairs", total=total, completed=done)
        yield lambda count: bar.advance(task, count)
