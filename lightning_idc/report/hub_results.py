"""Results in the files by which the Hugging Face hub makes leaderboards: a model's and a benchmark's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightning_idc.metrics.captions import some
from lightning_idc.metrics.results import part_of
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.files import fill
from lightning_idc.utils.outputs import Output

FOLDER, BENCHMARK = ".eval_results", "eval.yaml"


def task_of(protocol: str, metric: str) -> str:
    """Name of a task on the hub: a protocol and a metric, and the part of the protocol where it needs one.

    Example:
        >>> task_of("clevr-change/total", "CIDEr-D")
        'clevr_change_total_cider_d'
    """
    return re.sub(r"[^a-z0-9]+", "_", f"{protocol} {metric}".lower()).strip("_")


@dataclass(frozen=True)
class Task:
    """A score of a result that has a place of its own on the hub.

    Args:
        id: of the task.
        part: of the protocol that the score is of.
        value: the score; None where it is not a number.
    """

    id: str
    part: str
    value: float | None


def tasks_of(result: Mapping[str, Any]) -> list[Task]:
    """Every score of every part; a metric that several parts have is named by the part, too, but for the first.

    Args:
        result: as of ``result.json``.

    Raises:
        DataError: two parts have names that the hub cannot tell apart.
    """
    protocol, tasks = result["protocol"]["name"], []
    for part, scores in result["scores"].items():
        for metric, value in scores.items():
            name = metric if part == part_of(result, metric) else f"{part} {metric}"
            tasks.append(Task(task_of(protocol, name), part, value))
    twice = [id for id, times in Counter(task.id for task in tasks).items() if times > 1]
    if twice:
        raise DataError(
            f"parts of {protocol!r} have names that are the same on the hub: {some(twice)}; rename the types of change"
        )
    return tasks


def entries(result: Mapping[str, Any], dataset: str) -> list[dict[str, Any]]:
    """Entries of ``.eval_results/NAME.yaml`` in the repository of a model, one for each score of each part.

    Args:
        result: as of ``result.json``.
        dataset: name of the benchmark's repository, ``OWNER/NAME``.
    """
    protocol = result["protocol"]
    notes = [_named_split(result), f"references {result['data']['fingerprint']}"]
    notes.append(f"predictions {result['predictions']['digest']}")
    if result["seed"] is not None:
        notes.append(f"seed {result['seed']}")
    if result["selection"] is not None:
        notes.append(f"chosen on {result['selection']}")
    found = []
    for task in tasks_of(result):
        pairs = f"{result['counts'][task.part]['pairs']} pairs"
        pairs += f" ({task.part})" * (task.part != result["headline"])
        about = [f"protocol {protocol['name']} {protocol['hash']}", pairs, *notes]
        if task.value is not None:
            entry = {"dataset": {"id": dataset, "task_id": task.id}, "value": task.value, "notes": ", ".join(about)}
            found.append(entry)
    return found


def benchmark(results: Mapping[Path, Mapping[str, Any]], dataset: str) -> dict[str, Any]:
    """What ``eval.yaml`` in the repository of a benchmark says: its tasks, one for each protocol, part and metric.

    Raises:
        DataError: results of one protocol are of several data or splits, or none of them names its split.
    """
    splits = {name: _split_of(name, members) for name, members in _by_protocol(results).items()}
    tasks = {
        task.id: {"id": task.id, "config": "default", "split": splits[result["protocol"]["name"]]}
        for result in results.values()
        for task in tasks_of(result)
    }
    return {
        "name": dataset.rpartition("/")[2],
        "description": "Image difference captioning, scored by lightning_idc under the protocol that a task names.",
        "evaluation_framework": "lightning_idc",
        "tasks": [tasks[name] for name in sorted(tasks)],
    }


def _by_protocol(results: Mapping[Path, Mapping[str, Any]]) -> dict[str, dict[Path, Mapping[str, Any]]]:
    found: dict[str, dict[Path, Mapping[str, Any]]] = {}
    for path, result in results.items():
        found.setdefault(result["protocol"]["name"], {})[path] = result
    return found


def _split_of(protocol: str, results: Mapping[Path, Mapping[str, Any]]) -> str:
    """The split of a protocol's tasks, whose numbers stand in one column and so must compare."""
    groups: dict[str, list[Path]] = {}
    for path, result in results.items():
        name = f"data {result['data']['fingerprint']}, protocol {result['protocol']['hash']}"
        groups.setdefault(name, []).append(path)
    splits = {result["data"]["split"] for result in results.values()} - {None}
    found = "; ".join(f"{name}: {_listed(paths, results)}" for name, paths in groups.items())
    if len(groups) > 1:
        raise DataError(
            f"results of {protocol!r} do not compare and cannot be one task of the hub: {found}. "
            "Choose with --data FINGERPRINT, or name a folder that holds results of one data and one hash"
        )
    if len(splits) > 1:
        raise DataError(
            f"results of {protocol!r} on the same references name several splits: {found}. "
            f"{BENCHMARK} names one: score those again that are wrong, with the right --split"
        )
    if not splits:
        raise DataError(
            f"no result of {protocol!r} says of which split its data is: {found}. {BENCHMARK} names it, and without a "
            "name it is read as test: score again with --split"
        )
    return str(splits.pop())


def _listed(paths: Sequence[Path], results: Mapping[Path, Mapping[str, Any]]) -> str:
    names = [f"{path} ({_named_split(results[path])})" for path in paths[:3]]
    return ", ".join([*names, *[f"and {len(paths) - 3} more"] * (len(paths) > 3)])


def _named_split(result: Mapping[str, Any]) -> str:
    return f"split {result['data']['split'] or 'unknown'}"


def write_hub(
    results: Mapping[Path, Mapping[str, Any]], folder: Path, dataset: str, out: Path, overwrite: bool = False
) -> list[Path]:
    """Write ``eval.yaml``, for the benchmark, and ``.eval_results/NAME.yaml``, for the model of each result.

    Args:
        results: by their files, as `read_results` reads them.
        folder: that the files lie in; a result is named by its place there.
        dataset: name of the benchmark's repository, ``OWNER/NAME``.
        out: folder of what is written.
        overwrite: whether files of others may be replaced.

    Returns:
        the files.

    Raises:
        DataError: there is no result, the name is none of a repository, two results would be one file, results
            would be mixed that do not compare, or the folder cannot be written to.
        ConfigError: a file of others is there.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", dataset):
        raise DataError(f"{dataset!r} is not a repository of the hub; expected OWNER/NAME")
    if not results:
        raise DataError(f"there is no result in {str(folder)!r}; expected files of ShowResults or `score --out`")
    made = {BENCHMARK: yaml.safe_dump(benchmark(results, dataset), sort_keys=False)}
    named: dict[str, Path] = {}
    for path, result in results.items():
        name = "-".join(path.relative_to(folder).with_suffix("").parts)
        if (other := named.setdefault(name, path)) != path:
            raise DataError(f"{other} and {path} would both be {FOLDER}/{name}.yaml; rename one of their folders")
        made[f"{FOLDER}/{name}.yaml"] = yaml.safe_dump(entries(result, dataset), sort_keys=False)
    try:
        with Output(out, f"results for {dataset}", overwrite, results, option="--out") as draft:
            (draft / FOLDER).mkdir()
            for name, text in made.items():
                fill(draft / name, text)
    except OSError as error:
        raise DataError(f"{out} cannot be written to ({error.strerror}); name another folder with --out") from error
    return [out / name for name in made]
