"""Merges parts of a study that ran separately, on several cores or machines; the summary equals that of a single run.

    python -m benchmarks.studies.merge parts/half-*.json --out FILE
    python -m benchmarks.studies.merge parts/short.json parts/long.json --by epochs --control "none, epochs 6 4 14"

Parts are what the studies (``preference_learning.py``, ``reward_learning.py``, ``noise.py``, ``synthesis_training.py``,
``mdp.py``) write with ``--part``: all captions. They may differ in seeds, worlds and rows, and in one setting that
``--by`` names, whose value becomes part of the names of the rows. Commit and other settings must be equal, and a row of
two parts (the captioner that others start from) must have the same captions in both.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import report
from benchmarks.studies.harness import VARIED, Study, print_summaries
from lightning_idc.report.comparison import Captioned
from lightning_idc.utils.errors import DataError

SAME = ("question", "commit")
NAMED = ("said", "figures")
"""Parts of a run that are stored by row."""


def read(paths: Sequence[Path], by: str | None = None) -> list[dict[str, Any]]:
    """Parts of one study.

    Args:
        paths: paths of the parts.
        by: setting that may differ.

    Raises:
        DataError: their questions, commits or settings differ, or a file is not a part.
    """
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in paths]
    for path, part in zip(paths, parts, strict=True):
        if not all("runs" in world for world in part.get("worlds", {"": {}}).values()):
            raise DataError(f"{path.name} does not hold what captioners said; expected a file that --part wrote")
        for name in SAME:
            if part[name] != parts[0][name]:
                raise DataError(
                    f"{path.name} is of {name} {part[name]!r} and {paths[0].name} of {parts[0][name]!r}; merge parts "
                    "of one study only"
                )
        first, own = fixed(parts[0], by), fixed(part, by)
        if first != own:
            odd = sorted(name for name in first.keys() | own.keys() if first.get(name) != own.get(name))
            raise DataError(
                f"{path.name} and {paths[0].name} differ in {', '.join(odd)}; merge parts of one study only"
            )
    return parts


def fixed(part: dict[str, Any], by: str | None = None) -> dict[str, Any]:
    """Settings that must be equal."""
    return {name: value for name, value in part["settings"].items() if name not in VARIED and name != by}


def named_by(parts: Sequence[dict[str, Any]], setting: str, control: str | None) -> list[dict[str, Any]]:
    """The parts with rows named after the value of a setting.

    Args:
        parts: parts that may differ in the setting.
        setting: its name.
        control: new name of the row with which all others are compared; may be None.

    Raises:
        DataError: a part lacks the setting, or no row has the name of the control.
    """
    if not all(setting in part["settings"] for part in parts):
        raise DataError(f"--by is {setting!r}; the parts have {', '.join(sorted(fixed(parts[0])))}")
    ends = [value_of(part["settings"][setting]) for part in parts]
    order = {
        world: [f"{row}, {setting} {end}" for end in dict.fromkeys(ends) for row in results["order"]]
        for part in parts
        for world, results in part["worlds"].items()
    }
    if control is not None and not all(control in rows for rows in order.values()):
        raise DataError(f"--control is {control!r}; the rows are {', '.join(next(iter(order.values())))}")
    named = []
    for part, end in zip(parts, ends, strict=True):
        worlds = {}
        for world, results in part["worlds"].items():
            runs = [
                run | {kind: {f"{row}, {setting} {end}": run[kind][row] for row in run[kind]} for kind in NAMED}
                for run in results["runs"]
            ]
            worlds[world] = results | {"order": order[world], "control": control, "runs": runs}
        named.append(part | {"worlds": worlds})
    return named


def value_of(setting: Any) -> str:
    """Text of a value on the command line."""
    return " ".join(map(str, setting)) if isinstance(setting, list) else str(setting)


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Study]:
    """Studies by world, seeds in order.

    Raises:
        DataError: two parts differ in test pairs or in the captions of a row, or lack rows of a seed.
    """
    runs: dict[str, dict[int, dict[str, dict[str, Any]]]] = {}
    studies: dict[str, Study] = {}
    for part in parts:
        for world, results in part["worlds"].items():
            study = Study(
                results["references"],
                results["constant"],
                results["order"],
                results["control"],
                results["unchanged"],
            )
            first = studies.setdefault(world, study)
            if first.setting != study.setting:
                raise DataError(f"parts of world {world} were tested on other pairs or rows; run them again")
            for run in results["runs"]:
                known = runs.setdefault(world, {}).setdefault(run["seed"], {"said": {}, "figures": {}, "notes": {}})
                unite(known, run, f"world {world}, seed {run['seed']}")
    for world, study in studies.items():
        rows = {seed: set(known["said"]) for seed, known in runs[world].items()}
        every = set.union(*rows.values())
        for seed, own in sorted(rows.items()):
            if own != every:
                raise DataError(f"world {world}, seed {seed} lacks {', '.join(sorted(every - own))}; run it again")
            known = runs[world][seed]
            study.add(
                seed,
                {name: (Captioned(**captions), known["figures"][name]) for name, captions in known["said"].items()},
                **known["notes"],
            )
    return studies


def unite(known: dict[str, dict[str, Any]], run: dict[str, Any], where: str) -> None:
    """Add the rows of a part for one seed."""
    for name, captioned in run["said"].items():
        if known["said"].setdefault(name, captioned) != captioned:
            raise DataError(f"{where}: {name} does not say the same in two parts; run them on machines of one kind")
    known["figures"] = {**run["figures"], **known["figures"]}
    seconds = known["notes"].get("seconds", 0.0) + run["notes"].get("seconds", 0.0)
    known["notes"] = {**run["notes"], "seconds": seconds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("--commit", help="of the parts, where they ran on a machine without git")
    parser.add_argument("--by", metavar="SETTING", help="in which the parts may differ, and that rows are named after")
    parser.add_argument("--control", metavar="ROW", help="with which the others are compared, as --by names it")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    if args.control and not args.by:
        parser.error("--control is for --by; without it the parts say what their control is")
    parts = read(args.parts, args.by)
    parts = named_by(parts, args.by, args.control) if args.by else parts
    studies = merged(parts)
    environments = [part["environment"] for part in parts]
    result = {
        "question": parts[0]["question"],
        "command": [part["command"] for part in parts],
        "commit": args.commit or parts[0]["commit"],
        "environment": environments[0] if all(one == environments[0] for one in environments) else environments,
        "settings": fixed(parts[0], args.by),
        "worlds": {world: study.as_dict() for world, study in studies.items()},
    }
    report(result, args.out, seeds=sorted({seed for study in studies.values() for seed in study.seeds}), quiet=True)
    print_summaries(studies)


if __name__ == "__main__":
    main()
