"""Check all pairs of a data module: counts, captions, readable images, repeated ids and images."""

from __future__ import annotations

import logging
import re
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from copy import copy

from lightning_idc.data.benchmark import Benchmark
from lightning_idc.data.datamodule import PairDataModule
from lightning_idc.data.splits import Split
from lightning_idc.images.types import PairSample
from lightning_idc.utils.errors import IDCError
from lightning_idc.utils.files import digest

Log = Callable[[str], object]
_logger = logging.getLogger(__name__)
_MAX_LISTED = 5


def check(data: PairDataModule, log: Log = _logger.info) -> list[str]:
    """Read every pair of every split once and return a message for each problem.

    For a benchmark, counts are first compared with the official ones, and missing images are listed.

    Args:
        data: data module to check.
        log: callback for each line of the summary.
    """
    return check_benchmark(data, log) if isinstance(data, Benchmark) else check_pairs(data, data.available_splits, log)


def check_benchmark(data: Benchmark, log: Log = _logger.info) -> list[str]:
    """Compare counts with the official ones, list missing images, then read all pairs that have images."""
    problems: dict[str, None] = {}
    readable: list[Split] = []
    incomplete = False
    log("\n".join([data.heading(), *data.remarks()]))
    for split in data.available_splits:
        try:
            records, expected = data.records(split), data.expected(split)
        except IDCError as error:
            problems[str(error)] = None
            continue
        log(f"{split}: expected {expected}; found {data.counts(split)}")
        if problem := data.miscount(split):
            problems[problem] = None
        images = {path for record in records for path in (record.before, record.after)}
        absent = set(data.files.absent(images))
        if absent:
            incomplete = True
            problems[data.missing_images(split, absent)] = None
        if not absent or absent < images:
            readable.append(split)
    if incomplete:
        log(data.layout().lstrip())
    lenient = copy(data)
    lenient.official, lenient.on_missing = False, "skip"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # skipped pairs are in the list of problems already
        problems |= dict.fromkeys(check_pairs(lenient, readable, log))
    return list(problems)


def check_pairs(
    data: PairDataModule,
    splits: Sequence[Split],
    log: Log = _logger.info,
) -> list[str]:
    """Read every pair of the splits once and return a message for each problem.

    Problems are empty splits, unreadable pairs, missing captions, image sizes that cannot be batched, and ids or
    images that occur in more than one split.

    Args:
        data: data module to check.
        splits: splits to read.
        log: callback for the summary line of each split.
    """
    from tqdm.auto import tqdm

    problems: dict[str, None] = {}  # a dictionary, since one bad table gives every split the same message
    split_of_id: dict[str, str] = {}
    has_unique_ids = data.has_unique_ids()
    digests: dict[str, tuple[str, str]] = {}
    sizes: Counter[str] = Counter()
    unreadable: dict[str, list[tuple[str, str, str]]] = {}
    for split in splits:
        try:
            source = data.pairs_of(split)
        except IDCError as error:
            problems[str(error)] = None
            continue
        faults: dict[str, list[str]] = {}
        split_sizes: Counter[str] = Counter()
        repeats: list[str] = []
        for index in tqdm(range(len(source)), f"reading {split}", delay=2.0, leave=False, disable=None):
            name = source.ids[index]
            if has_unique_ids and split_of_id.setdefault(name, split) != split:
                faults.setdefault(f"ids are also in {split_of_id[name]}", []).append(name)
            is_uncaptioned = not any(map(str.strip, source.captions(index)))
            if is_uncaptioned and not data.may_be_uncaptioned(split, source.change_type(index)):
                faults.setdefault("pairs have no caption", []).append(name)
            try:
                sample = source.load(index)
            except IDCError as error:
                unreadable.setdefault(_cause(str(error)), []).append((split, name, str(error)))
                continue
            split_sizes[f"{sample.before.shape[1]}x{sample.before.shape[2]}"] += 1
            duplicate, duplicate_split = digests.setdefault(_digest(sample), (name, split))
            if duplicate_split == split and duplicate != name:
                repeats.append(f"{name} = {duplicate}")
            if duplicate_split != split and split_of_id.get(name, split) == split:  # shared ids are reported above
                faults.setdefault(f"pairs have the same images as one in {duplicate_split}", []).append(
                    f"{name} = {duplicate}"
                )
        for fault, names in faults.items():
            problems[f"{split}: {len(names)} of {len(source)} {fault}: {_list_first(names, ', ')}"] = None
        captions = sum(len(source.captions(index)) for index in range(len(source)))
        log(f"{split}: {len(source):,} pairs, {captions:,} captions, images of {_counted(split_sizes)}")
        if repeats:
            log(f"{split}: {len(repeats):,} pairs repeat the images of another: {_list_first(repeats, ', ')}")
        sizes += split_sizes
    problems |= dict.fromkeys(map(_unreadable, unreadable.values()))
    if len(sizes) > 1 and data.image_size is None and not data.group_by_size:
        problems[f"no batch can hold images of several sizes ({_counted(sizes)}); set image_size"] = None
    return list(problems)


def _cause(message: str) -> str:
    """What messages about several pairs have in common: all but names, origins and numbers."""
    return re.sub(r"'[^']*'|\([^)]*, line \d+\)|\d+", "", message)


def _unreadable(faults: Sequence[tuple[str, str, str]]) -> str:
    """Message about pairs that cannot be read for one cause.

    Args:
        faults: split, name and message of each pair.
    """
    counts = Counter(split for split, _, _ in faults)
    head = ", ".join(f"{count} {split}" for split, count in counts.items())
    others = [name for _, name, _ in faults[1:]]
    more = f"; the same with {_list_first(others, ', ')}" if others else ""
    return f"{head} pairs cannot be read: {faults[0][2]}{more}"


def _digest(sample: PairSample) -> str:
    """Compute the digest of both images of a pair."""
    images = (image.contiguous().numpy().data for image in (sample.before, sample.after))
    return digest(repr(tuple(sample.before.shape)), *images)


def _counted(sizes: Counter[str]) -> str:
    if len(sizes) == 1:
        return next(iter(sizes))
    examples = ", ".join(f"{size} ({count:,})" for size, count in sizes.most_common(_MAX_LISTED))
    return (examples or "unknown size") + (", ..." if len(sizes) > _MAX_LISTED else "")


def _list_first(names: Sequence[str], separator: str) -> str:
    return separator.join(names[:_MAX_LISTED]) + (f"{separator}..." if len(names) > _MAX_LISTED else "")
