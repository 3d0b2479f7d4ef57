"""Benchmark results with the information for repeating them, a quiet Trainer, and generated tables in pages."""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import re
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent


def report(
    result: Mapping[str, Any],
    out: Path | None,
    *packages: str,
    seeds: Sequence[int],
    java: bool = False,
    quiet: bool = False,
) -> None:
    """Print a result, and optionally write it to a file.

    Args:
        result: plain values; ``question`` overrides the first line of the benchmark's docstring.
        out: JSON file; None only prints.
        packages: distributions whose versions are recorded, in addition to torch and numpy.
        seeds: seeds of the benchmark; empty if it is deterministic.
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
    """The process that measured a row failed; the message is the end of its output."""

    @property
    def line(self) -> str:
        """The last line, which names the error."""
        return (str(self).strip().splitlines() or ["without a word"])[-1]


def measure_apart(*arguments: object) -> dict[str, Any]:
    """Run this script with other arguments in a separate process, and return the row that it hands to `give_back`.

    Peak memory is then that of one row, and rows do not affect each other. The processes are forked from a server that
    has imported the script, so that each row does not import torch again.

    Raises:
        RowFailed: the process failed.
    """
    module = _module()
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([module])
    with tempfile.TemporaryDirectory() as folder:
        output, row = Path(folder) / "output", Path(folder) / "row.json"
        process = context.Process(target=_run_row, args=(module, [*map(str, arguments)], output, row))
        process.start()
        process.join()
        if process.exitcode or not row.is_file():
            raise RowFailed(output.read_text(encoding="utf-8", errors="replace")[-3000:])
        result: dict[str, Any] = json.loads(row.read_text(encoding="utf-8"))
    return result


_ROW_FILE = "IDC_BENCHMARK_ROW"


def _run_row(module: str, arguments: list[str], output: Path, row: Path) -> None:
    """Run a module as a script in this process; what it prints goes to a file."""
    file = os.open(output, os.O_WRONLY | os.O_CREAT)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.environ[_ROW_FILE] = str(row)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def give_back(row: Mapping[str, Any]) -> None:
    """Return a row to the process that called `measure_apart`."""
    Path(os.environ[_ROW_FILE]).write_text(json.dumps(row), encoding="utf-8")


def complete(result: Mapping[str, Any], *packages: str, seeds: Sequence[int], java: bool = False) -> dict[str, Any]:
    """Result with the information for repeating it; arguments as in :func:`report`."""
    return {
        "question": question(),
        "command": command(),
        "commit": commit(),
        "environment": environment(*packages, java=java),
        "seeds": list(seeds),
        **result,
    }


def question() -> str:
    """First line of the docstring of the running script."""
    return (sys.modules["__main__"].__doc__ or "").strip().partition("\n")[0]


def command() -> str:
    """Command line of the running script; folders of this machine are shortened to their last part."""
    return " ".join(["python", "-m", _module(), *map(without_folder, sys.argv[1:])])


def without_folder(value: Any) -> Any:
    """A value of the command line; the last part of an absolute path, whose folders are those of this machine."""
    return Path(value).name if isinstance(value, str | Path) and Path(value).is_absolute() else value


def _module() -> str:
    """Name of the running module for ``python -m``."""
    spec = sys.modules["__main__"].__spec__
    if spec is None:
        raise SystemExit(
            f"run it as a module from the root of the repository: python -m benchmarks.{Path(sys.argv[0]).stem}"
        )
    return spec.name


def commit() -> str:
    """Commit of the code, with a note if files differ from it; ``BENCH_COMMIT`` if a copy has no history."""
    if os.environ.get("BENCH_COMMIT"):
        return os.environ["BENCH_COMMIT"]

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=HERE, capture_output=True, text=True).stdout.strip()

    return git("rev-parse", "HEAD") + (" and changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return platform.processor() or platform.machine()
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return name.group(1).strip() if name else platform.machine()


def _java() -> str | None:
    try:
        answer = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30, check=True).stderr
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r'version "([^"]+)"', answer)
    return version.group(1) if version else None


def environment(*packages: str, java: bool = False) -> dict[str, Any]:
    """Hardware and versions, without host or folder names.

    Args:
        packages: distributions whose versions are recorded, in addition to torch and numpy.
        java: whether to read Java's version, which takes a moment.
    """
    versions = {}
    for package in dict.fromkeys(("torch", "numpy", *packages)):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    facts: dict[str, Any] = {
        "cpu": _cpu(),
        "cores": usable,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": versions,
    }
    if "torch" in sys.modules:
        torch = sys.modules["torch"]
        facts["torch_threads"] = torch.get_num_threads()
        facts["gpu"] = torch.cuda.get_device_name(0) if torch.cuda.is_available() else None
    if java:
        facts["java"] = _java()
    return facts


def adamw(rate: float) -> Any:
    """Function that creates a fused AdamW, as the ``optimizer`` of a captioner."""
    import torch  # as in quiet_trainer

    return lambda groups: torch.optim.AdamW(groups, lr=rate, fused=True)


def quiet_trainer(**options: Any) -> Any:
    """Trainer on the CPU without logger, checkpoints, progress bar and sanity checks by default."""
    from lightning.pytorch import Trainer  # a benchmark sets its number of threads before torch is imported

    quiet = {
        "accelerator": "cpu",
        "logger": False,
        "num_sanity_val_steps": 0,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return Trainer(**{**quiet, **options})


def filled(text: str, tables: Mapping[str, str]) -> str:
    """Page with regenerated tables.

    Args:
        text: text of the page.
        tables: tables by the name of their marks.

    Raises:
        SystemExit: the page lacks a mark.

    Example:
        >>> filled("<!-- a -->\\nold\\n<!-- /a -->\\n", {"a": "new"})
        '<!-- a -->\\nnew\\n<!-- /a -->\\n'
    """
    for name, table in tables.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- /{name} -->")
        if not end:
            raise SystemExit(
                f"The page has no lines <!-- {name} --> and <!-- /{name} -->; write them where the table is to stand."
            )
        text = f"{before}{begin}{table.rstrip()}\n{end}{after}"
    return text
