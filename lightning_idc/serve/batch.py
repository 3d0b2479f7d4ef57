"""run_batch: answers about many pairs of files, without captioning unchanged pairs; interrupted runs can be resumed."""

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

from lightning_idc.callbacks.write_predictions import check_part, line_of, records_of, remove_part
from lightning_idc.images.input_spec import InputSpec
from lightning_idc.images.read import read_pair
from lightning_idc.images.resize import resize
from lightning_idc.images.types import PairSample
from lightning_idc.serve.answer import Answer
from lightning_idc.serve.describer import Describer
from lightning_idc.serve.gate import Gate, Verdict
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.serve.options import BatchOptions
from lightning_idc.serve.pairs import FilePair, Ignored
from lightning_idc.serve.tiles import TileOptions, answer_scene
from lightning_idc.synthesis.actors import ActorPool, connect
from lightning_idc.utils.errors import ConfigError, DataError, IDCError
from lightning_idc.utils.files import atomic_write

_RETRIES = 3
"""Number of retries for a batch whose actor died."""


class FilePairs(Dataset[tuple[FilePair, PairSample | Verdict | str | None]]):
    """Dataset of pairs: a sample, the verdict of the gate if it is unchanged, or an error message if reading failed."""

    def __init__(self, pairs: Sequence[FilePair], spec: InputSpec, ignored: Ignored, gate: Gate | None) -> None:
        self.pairs, self.spec, self.ignored, self.gate = pairs, spec, ignored, gate

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[FilePair, PairSample | Verdict | str | None]:
        pair = self.pairs[index]
        try:
            return pair, self._read(pair)
        except IDCError as error:
            return pair, str(error)

    def _read(self, pair: FilePair) -> PairSample | Verdict | None:
        if pair.before is None or pair.after is None:
            return None
        # the gate compares stored values, since conversion may lose differences in opacity, further bands or pages
        verdict = None
        options = self.spec.options
        if self.gate is not None:
            verdict = self.gate.check(pair, partial(self.ignored.mask, pair.id))
            if not verdict.is_described:
                return verdict
            options = options if options.page is not None else replace(options, page=verdict.page)
        before, after = read_pair(pair.before, pair.after, options, pair.id)
        if verdict is not None and self.gate is not None and self.gate.align != "none":
            height, width = (min(sides) for sides in zip(_size(before), _size(after), strict=True))
            before, after = before[:, :height, :width], after[:, :height, :width]
        if self.ignored.parts:
            after = self.ignored.apply(pair.id, before, resize(after, _size(before)))
        sample = self.spec.read(before, after, pair.id)
        sample.meta["verdict"] = verdict
        return sample


def run_batch(
    model: ModelOptions, pairs: Sequence[FilePair], options: BatchOptions, out: Path, gate: Gate | None
) -> tuple[Describer, list[dict[str, Any]]]:
    """Answer pairs, and append each answer to ``<out>.part`` immediately, so that the run can be resumed.

    Args:
        model: options of the captioner.
        pairs: pairs of image files.
        options: options of the run.
        out: output file, written later by the caller.
        gate: decides which pairs are unchanged and not captioned; None captions every pair.

    Returns:
        The describer, and records in the order of the pairs.

    Raises:
        DataError: there is an unfinished run of another captioner or of other pairs.
    """
    describer = model.open_describer()
    part = out.with_name(f"{out.name}.part")
    ids = [pair.id for pair in pairs]
    # images in other folders often have the same names
    files = [str(path.absolute()) for pair in pairs for path in (pair.before, pair.after) if path is not None]
    settings = str((gate, options.where, list(options.ignore), options.tile, options.stride))
    key = describer.prediction_key([*ids, *files, settings])
    done = _resumed_answers(part, key)
    if done:
        print(f"{len(done)} of {len(pairs)} pairs were answered before; resuming with the others", file=sys.stderr)
    part.parent.mkdir(parents=True, exist_ok=True)
    if not done:
        atomic_write(part, line_of({"prediction": key}))
    with part.open("a", encoding="utf-8") as file, _progress(len(pairs), len(done)) as advance:
        remaining = [pair for pair in pairs if pair.id not in done]
        if options.engine == "ray":
            batches = answer_batches_on_ray(model, remaining, options, gate)
        else:
            batches = answer_batches(describer, remaining, options, gate)
        for records in batches:
            _append(file, records)
            done.update({record["id"]: record for record in records})
            advance(len(records))
    return describer, [done[id] for id in ids]


def answer_batches(
    describer: Describer,
    pairs: Sequence[FilePair],
    options: BatchOptions,
    gate: Gate | None,
    prompt: str | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Answer pairs batch by batch, with one record per pair.

    Args:
        describer: captioner or rules.
        pairs: pairs of image files.
        options: options of the run.
        gate: decides which pairs are unchanged and not captioned; None captions every pair.
        prompt: prompt for each pair; that of the captioner when None.

    Raises:
        ConfigError: the batch size or the number of workers is invalid.
    """
    if options.tile is not None:
        yield from _scenes(describer, pairs, options, gate)
        return
    dataset = FilePairs(pairs, describer.input_spec, Ignored(options.ignore), gate)
    for batch in DataLoader(dataset, options.batch_size, num_workers=options.workers, collate_fn=list):
        yield list(_records(describer, batch, options.where, prompt))


def _scenes(
    describer: Describer, pairs: Sequence[FilePair], options: BatchOptions, gate: Gate | None
) -> Iterator[list[dict[str, Any]]]:
    """Answers about pairs of large scenes, tile by tile, one record per list."""
    if options.ignore:
        raise ConfigError("--ignore is not available with --tile; mask the images beforehand")
    tiles = TileOptions(options.tile, options.stride)
    for pair in pairs:
        if pair.before is None or pair.after is None:
            yield [_record(pair, "new" if pair.before is None else "deleted")]
            continue
        try:
            verdict = None if gate is None else gate.check(pair)
            if verdict is not None and not verdict.is_described:
                yield [_record_of_gate(pair, verdict)]
                continue
            answer, _ = answer_scene(describer, pair.before, pair.after, tiles, where=options.where, id=pair.id)
        except IDCError as error:
            yield [{**_record(pair, "failed"), "error": str(error)}]
        else:
            yield [_record_of_answer(pair, answer, verdict, describer.decides_change)]


def answer_batches_on_ray(
    model: ModelOptions, pairs: Sequence[FilePair], options: BatchOptions, gate: Gate | None
) -> Iterator[list[dict[str, Any]]]:
    """Batches of :func:`answer_batches` from Ray actors, in order of completion; those of dead actors are retried.

    Args:
        model: options of the captioner of each actor.
        pairs: pairs of image files.
        options: options of the run.
        gate: see :func:`answer_batches`.

    Raises:
        ConfigError: Ray is not installed.
    """
    size, ray = options.batch_size, connect(None)
    actor_class = ray.remote(num_cpus=1, num_gpus=options.gpus)(_BatchActor)
    batches = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    create = partial(actor_class.remote, model, options, gate)
    return ActorPool(ray, create, options.actors, _RETRIES, "batch", batches.__getitem__).results(range(len(batches)))


class _BatchActor:
    """Ray actor that answers batches."""

    def __init__(self, model: ModelOptions, options: BatchOptions, gate: Gate | None) -> None:
        self.model, self.options, self.gate = model, options, gate

    def prepare(self) -> None:
        self.describer = self.model.open_describer()

    def work(self, pairs: Sequence[FilePair]) -> list[dict[str, Any]]:
        batches = answer_batches(self.describer, pairs, self.options, self.gate)
        return [record for batch in batches for record in batch]


def finish(out: Path) -> None:
    """Remove the ``.part`` file after the output is written."""
    remove_part(out.with_name(f"{out.name}.part"))


def _resumed_answers(part: Path, key: str) -> dict[str, dict[str, Any]]:
    """Answers of an interrupted run, except an incomplete last line, failed pairs and pairs with newer images."""
    check_part(part)
    if not part.is_file():
        return {}
    since = part.stat().st_mtime_ns
    records = list(records_of(part))
    if not any("id" in record for record in records):
        return {}  # it stopped before its first answer
    if records[0].get("prediction") != key:
        raise DataError(
            f"{str(part)!r} contains answers of an unfinished run of another captioner, of other settings or of other "
            "pairs; finish that run, remove the file, or choose another --out"
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
    describer: Describer,
    batch: Sequence[tuple[FilePair, PairSample | Verdict | str | None]],
    where: bool,
    prompt: str | None,
) -> Iterator[dict[str, Any]]:
    """One record per pair of a batch, in its order."""
    samples = [sample for _, sample in batch if isinstance(sample, PairSample)]
    groups = _group_by_size(samples if prompt is None else describer.with_prompt(samples, prompt))
    answers = {answer.id: answer for group in groups for answer in describer.answer(group, where)}
    for pair, sample in batch:
        if isinstance(sample, PairSample):
            yield _record_of_answer(pair, answers[pair.id], sample.meta["verdict"], describer.decides_change)
        elif isinstance(sample, Verdict):
            yield _record_of_gate(pair, sample)
        elif isinstance(sample, str):
            yield {**_record(pair, "failed"), "error": sample}
        else:
            yield _record(pair, "new" if pair.before is None else "deleted")


def _record_of_answer(pair: FilePair, answer: Answer, verdict: Verdict | None, decides: bool) -> dict[str, Any]:
    """Record of a described pair.

    Args:
        pair: the pair.
        answer: answer of the describer.
        verdict: verdict of the gate, which found differences; None without a gate.
        decides: whether the description decides, against the gate, that the pair is unchanged.
    """
    if answer.says_changed:
        return _record(pair, "changed", answer, verdict)
    if verdict is None or decides:
        return _record(pair, "unchanged", replace(answer, boxes=[]), verdict)  # an unchanged pair has no boxes
    answer = replace(
        answer, caption=verdict.as_sentence(), change_score=None, boxes=verdict.boxes(), size=verdict.canvas
    )
    return _record(pair, "changed", answer, verdict)


def _record_of_gate(pair: FilePair, verdict: Verdict) -> dict[str, Any]:
    """Record of a pair that was not described: it is unchanged, or an image of its files has no partner."""
    record = _record(pair, "changed" if verdict.changed else "unchanged", verdict=verdict)
    return {**record, "caption": verdict.as_sentence()} if verdict.changed else record


def _record(
    pair: FilePair, status: str, answer: Answer | None = None, verdict: Verdict | None = None
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
        "compared": None if verdict is None else str(verdict.comparison),
        "noise": None if verdict is None else verdict.noise,
        "page": None if verdict is None else verdict.page,
        "boxes": [] if answer is None else answer.boxes,
        "error": None,
    }


def _group_by_size(samples: Sequence[PairSample]) -> list[list[PairSample]]:
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
