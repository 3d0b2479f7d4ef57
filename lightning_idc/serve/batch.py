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
from lightning_idc.images.compare import ImageComparison, Tolerance, compare_files
from lightning_idc.images.input_spec import InputSpec
from lightning_idc.images.read import read_pair
from lightning_idc.images.resize import resize
from lightning_idc.images.types import PairSample
from lightning_idc.serve.answer import Answer
from lightning_idc.serve.describer import Describer
from lightning_idc.serve.opening import ModelOptions
from lightning_idc.serve.options import BatchOptions
from lightning_idc.serve.pairs import FilePair, Ignored
from lightning_idc.serve.tiles import TileOptions, answer_scene
from lightning_idc.synthesis.actors import ActorPool, connect
from lightning_idc.utils.errors import ConfigError, DataError, IDCError
from lightning_idc.utils.files import atomic_write

_RETRIES = 3
"""Number of retries for a batch whose actor died."""


class FilePairs(Dataset[tuple[FilePair, PairSample | ImageComparison | str | None]]):
    """Dataset of pairs: a sample, the comparison if pixels are equal, or an error message if reading failed."""

    def __init__(
        self, pairs: Sequence[FilePair], spec: InputSpec, ignored: Ignored, tolerance: Tolerance | None
    ) -> None:
        self.pairs, self.spec, self.ignored, self.tolerance = pairs, spec, ignored, tolerance

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
        if self.tolerance is not None:
            comparison = compare_files(pair.before, pair.after, pair.id, ignore, self.tolerance.value)
            if comparison.pixels <= self.tolerance.pixels:
                return comparison
        before, after = read_pair(pair.before, pair.after, self.spec.options, pair.id)
        if self.ignored.parts:
            after = self.ignored.apply(pair.id, before, resize(after, _size(before)))
        sample = self.spec.read(before, after, pair.id)
        sample.meta["comparison"] = comparison
        return sample


def run_batch(
    model: ModelOptions, pairs: Sequence[FilePair], options: BatchOptions, out: Path, tolerance: Tolerance | None
) -> tuple[Describer, list[dict[str, Any]]]:
    """Answer pairs, and append each answer to ``<out>.part`` immediately, so that the run can be resumed.

    Args:
        model: options of the captioner.
        pairs: pairs of image files.
        options: options of the run.
        out: output file, written later by the caller.
        tolerance: difference up to which a pair is unchanged and not captioned; None captions every pair.

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
    settings = str((tolerance, options.where, list(options.ignore), options.tile, options.stride))
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
            batches = answer_batches_on_ray(model, remaining, options, tolerance)
        else:
            batches = answer_batches(describer, remaining, options, tolerance)
        for records in batches:
            _append(file, records)
            done.update({record["id"]: record for record in records})
            advance(len(records))
    return describer, [done[id] for id in ids]


def answer_batches(
    describer: Describer,
    pairs: Sequence[FilePair],
    options: BatchOptions,
    tolerance: Tolerance | None,
    prompt: str | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Answer pairs batch by batch, with one record per pair.

    Args:
        describer: captioner or rules.
        pairs: pairs of image files.
        options: options of the run.
        tolerance: difference up to which a pair is unchanged and not captioned; None captions every pair.
        prompt: prompt for each pair; that of the captioner when None.

    Raises:
        ConfigError: the batch size or the number of workers is invalid.
    """
    if options.tile is not None:
        yield from _scenes(describer, pairs, options, tolerance)
        return
    dataset = FilePairs(pairs, describer.input_spec, Ignored(options.ignore), tolerance)
    for batch in DataLoader(dataset, options.batch_size, num_workers=options.workers, collate_fn=list):
        yield list(_records(describer, batch, options.where, prompt))


def _scenes(
    describer: Describer, pairs: Sequence[FilePair], options: BatchOptions, tolerance: Tolerance | None
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
            comparison = None
            if tolerance is not None:
                comparison = compare_files(pair.before, pair.after, pair.id, None, tolerance.value)
                if comparison.pixels <= tolerance.pixels:
                    yield [_record(pair, "unchanged", comparison=comparison)]
                    continue
            answer, _ = answer_scene(describer, pair.before, pair.after, tiles, where=options.where, id=pair.id)
        except IDCError as error:
            yield [{**_record(pair, "failed"), "error": str(error)}]
        else:
            yield [_record(pair, "changed" if answer.says_changed else "unchanged", answer, comparison)]


def answer_batches_on_ray(
    model: ModelOptions, pairs: Sequence[FilePair], options: BatchOptions, tolerance: Tolerance | None
) -> Iterator[list[dict[str, Any]]]:
    """Batches of :func:`answer_batches` from Ray actors, in order of completion; those of dead actors are retried.

    Args:
        model: options of the captioner of each actor.
        pairs: pairs of image files.
        options: options of the run.
        tolerance: see :func:`answer_batches`.

    Raises:
        ConfigError: Ray is not installed.
    """
    size, ray = options.batch_size, connect(None)
    actor_class = ray.remote(num_cpus=1, num_gpus=options.gpus)(_BatchActor)
    batches = [pairs[start : start + size] for start in range(0, len(pairs), size)]
    create = partial(actor_class.remote, model, options, tolerance)
    return ActorPool(ray, create, options.actors, _RETRIES, "batch", batches.__getitem__).results(range(len(batches)))


class _BatchActor:
    """Ray actor that answers batches."""

    def __init__(self, model: ModelOptions, options: BatchOptions, tolerance: Tolerance | None) -> None:
        self.model, self.options, self.tolerance = model, options, tolerance

    def prepare(self) -> None:
        self.describer = self.model.open_describer()

    def work(self, pairs: Sequence[FilePair]) -> list[dict[str, Any]]:
        batches = answer_batches(self.describer, pairs, self.options, self.tolerance)
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
    batch: Sequence[tuple[FilePair, PairSample | ImageComparison | str | None]],
    where: bool,
    prompt: str | None,
) -> Iterator[dict[str, Any]]:
    """One record per pair of a batch, in its order."""
    samples = [sample for _, sample in batch if isinstance(sample, PairSample)]
    groups = _group_by_size(samples if prompt is None else describer.with_prompt(samples, prompt))
    answers = {answer.id: answer for group in groups for answer in describer.answer(group, where)}
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
            status = "new" if pair.before is None else "deleted" if pair.after is None else "unchanged"
            yield _record(pair, status, comparison=sample)


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
