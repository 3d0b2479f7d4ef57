"""How a benchmark keeps its result: with question, command, commit, hardware, versions and seeds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from environment import describe

HERE = Path(__file__).resolve().parent


def report(
    result: Mapping[str, Any],
    out: Path | None,
    *packages: str,
    seeds: Sequence[int],
    java: bool = False,
    quiet: bool = False,
) -> None:
    """Print a result, and keep it where that was asked for.

    Args:
        result: plain values; ``question`` takes the place of the first line of the benchmark's docstring.
        out: JSON file; None to print alone.
        packages: distributions whose versions matter, besides torch and numpy.
        seeds: of all chance in it; none where nothing is drawn.
        java: also keep Java's version, which takes a moment.
        quiet: the benchmark prints something shorter itself.
    """
    text = json.dumps(complete(result, *packages, seeds=seeds, java=java), indent=1, ensure_ascii=False)
    if not quiet:
        print(text)
    if out:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text + "\n", encoding="utf-8")


class RowFailed(Exception):
    """A row that was measured in a process of its own ended with an error; its text is the end of what it wrote."""

    @property
    def line(self) -> str:
        """The last line, which names the error."""
        return (str(self).strip().splitlines() or ["without a word"])[-1]


_MARK = "RESULT "


def measure_apart(*arguments: object) -> dict[str, Any]:
    """What the running script measures with other arguments in a process of its own, which ends with `give_back`.

    Memory is then that of one row, and no row finds what another left.

    Raises:
        RowFailed: the process failed.
    """
    command = [sys.executable, sys.argv[0], *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RowFailed(done.stderr[-3000:])
    found: dict[str, Any] = json.loads(done.stdout.rpartition(_MARK)[2])
    return found


def give_back(row: Mapping[str, Any]) -> None:
    """Hand a row to the process that `measure_apart` was called in."""
    print(_MARK + json.dumps(row))


def complete(result: Mapping[str, Any], *packages: str, seeds: Sequence[int], java: bool = False) -> dict[str, Any]:
    """A result with what it takes to repeat it; arguments as of :func:`report`."""
    return {
        "question": question(),
        "command": command(),
        "commit": commit(),
        "environment": describe(*packages, java=java),
        "seeds": list(seeds),
        **result,
    }


def question() -> str:
    """First line of the docstring of the script that runs."""
    return (sys.modules["__main__"].__doc__ or "").strip().partition("\n")[0]


def command() -> str:
    """Command line of the script that runs; of folders of this machine only the last part."""
    arguments = [Path(text).name if Path(text).is_absolute() else text for text in sys.argv[1:]]
    return " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *arguments])


def commit() -> str:
    """Commit of the code, with a note where files differ from it; ``BENCH_COMMIT`` where a copy has no history."""
    if os.environ.get("BENCH_COMMIT"):
        return os.environ["BENCH_COMMIT"]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "HEAD") + (" and changes" if git("status", "--porcelain", "--untracked-files=no") else "")
