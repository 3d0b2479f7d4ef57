"""Rows of a leaderboard: the results in a folder, grouped by captioner over training seeds."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from lightning_idc.metrics.results import METRICS, SCHEMA, part_of, read_result
from lightning_idc.utils.errors import DataError
from lightning_idc.utils.files import fingerprint

_FIRST_BYTES = 4096
_RECORD = "run.json"
_SEED = re.compile(r"seed[_-]?\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d[_T]\d\d-\d\d.*")


@dataclass(frozen=True)
class LeaderboardRow:
    """Results of one captioner, trained with different seeds.

    Args:
        name: file name relative to the folder; ``N`` replaces the part that differs between seeds.
        results: one result per seed.
        files: files of the results.
    """

    name: str
    results: list[dict[str, Any]]
    files: list[Path]

    def values(self, metric: str) -> list[float]:
        """Scores by a metric, one per seed that has it."""
        values = [result["scores"].get(part_of(result, metric), {}).get(metric) for result in self.results]
        return [value for value in values if value is not None]

    @property
    def model(self) -> str:
        return self.results[0]["model"] or Path(self.name).stem

    @property
    def captions(self) -> set[str]:
        return {result["predictions"]["digest"] for result in self.results}


def read_results(folder: Path) -> dict[Path, dict[str, Any]]:
    """Results in a folder and its subfolders, by file; other JSON files are skipped.

    Raises:
        DataError: there are no results, or one is damaged.
    """
    if not folder.is_dir():
        raise DataError(f"there is no folder {folder}")
    every = (path for path in sorted(folder.rglob("*.json")) if not path.is_dir())
    files = (path for path in every if path.parent == folder or _may_be_result(path))
    results = {path: result for path in files if (result := read_result(path)) is not None}
    if not results:
        raise DataError(
            f"there are no results in {folder} and its subfolders; `lightning-idc score ... --out FILE` and "
            "ShowResults (metrics.json) write them"
        )
    return results


def of_data(results: Mapping[Path, dict[str, Any]], fingerprints: Sequence[str]) -> dict[Path, dict[str, Any]]:
    """Select results by data set.

    Args:
        results: results by file.
        fingerprints: fingerprints of the data, as shown on boards; they differ between protocols.

    Raises:
        DataError: there is no result for a fingerprint.
    """
    available = {result["data"]["fingerprint"] for result in results.values()}
    unknown = [name for name in fingerprints if name not in available]
    if unknown:
        raise DataError(
            f"no result has the data fingerprint {', '.join(unknown)}; expected {', '.join(sorted(available))}"
        )
    return {path: result for path, result in results.items() if result["data"]["fingerprint"] in fingerprints}


def _may_be_result(path: Path) -> bool:
    """Whether a file may be a result, since run folders contain large files of predictions.

    Raises:
        DataError: the file cannot be opened.
    """
    if path.name == METRICS:
        return True
    try:
        with path.open("rb") as file:
            return SCHEMA.encode() in file.read(_FIRST_BYTES)
    except OSError as error:
        raise DataError(
            f"{path} cannot be read ({error.strerror}), although it may be a result; make it readable or remove it"
        ) from None


def group_by_captioner(members: Mapping[Path, dict[str, Any]], folder: Path) -> tuple[list[LeaderboardRow], list[str]]:
    """Group results of runs that differ only in their seed into rows; also returns notes on omitted results."""
    groups: dict[str, dict[str, Path]] = {}
    notes = []
    for path, result in members.items():
        group = groups.setdefault(_identity(path, result), {})
        seed = str(result.get("seed"))
        if seed in group:
            notes.append(f"{relative_name(group[seed], folder)}: repeated with the same seed; the later run counts")
        group[seed] = path  # files are sorted by date, so the latest one remains
    rows = []
    for files in groups.values():
        paths = list(files.values())
        name = _common_name([relative_name(path, folder) for path in paths])
        rows.append(LeaderboardRow(name, [members[path] for path in paths], paths))
    return rows, notes


def relative_name(path: Path, folder: Path) -> str:
    """Name of a file relative to a folder."""
    return path.relative_to(folder).as_posix() if path.is_relative_to(folder) else path.as_posix()


def _common_name(names: Sequence[str]) -> str:
    parts = [name.split("/") for name in names]
    if len({len(part) for part in parts}) > 1:
        return names[0]
    return "/".join(same[0] if len(set(same)) == 1 else f"{_common_start(same)}N" for same in zip(*parts, strict=True))


def _common_start(texts: Sequence[str]) -> str:
    return "".join(signs[0] for signs in takewhile(lambda signs: len(set(signs)) == 1, zip(*texts, strict=False)))


def _identity(path: Path, result: Mapping[str, Any]) -> str:
    """Key that runs of one captioner with different seeds share; the path for files without a run."""
    record = next((parent / _RECORD for parent in path.parents if (parent / _RECORD).is_file()), None)
    if record is None or result.get("seed") is None:
        return str(path)
    try:
        run = json.loads(record.read_text(encoding="utf-8"))
        keys = {key: value for key, value in run["overrides"].items() if not key.endswith("seed_everything")}
        recipe = [run["recipe"], run["digest"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{record} cannot be read ({error!r}); restore the file that the run wrote, or remove it"
        ) from None
    stage = path.relative_to(record.parent).as_posix()
    where = [part for part in record.parent.parent.parts if not (_SEED.fullmatch(part) or _DATE.fullmatch(part))]
    return fingerprint([result["model"], result.get("decoding"), result["selection"], *recipe, keys, stage, where])
