"""Runs of a recipe: one for each seed and each choice of matrix entries."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning_idc.cli import name_modules
from lightning_idc.cli.preflight import check_models
from lightning_idc.cli.recipes.compose import Recipe, about, choices, load
from lightning_idc.cli.recipes.launch import Launch, Processes, run_in_process
from lightning_idc.cli.recipes.overrides import check_recipe, override, smoke_keys, use_data, with_engine
from lightning_idc.cli.recipes.ranks import Ranks, Watch, ranks_of_job
from lightning_idc.cli.recipes.run import RUN, Run, new_folder, read_record
from lightning_idc.cli.recipes.shipped import file_of
from lightning_idc.utils.errors import ConfigError, IDCError

SPIN_COUNT = "10000"
"""How often a thread of GNU OpenMP looks for work before it sleeps."""


def run_recipe(
    recipe: str, *, smoke: bool, seeds: str | None, out: Path | None, resume: Path | None, keys: dict[str, Any]
) -> int:
    """Run a recipe for several seeds and all matrix entries; the arguments are those of the verb `run`.

    Args:
        recipe: YAML file or name.
        smoke: whether to run at the size of tests.
        seeds: seeds separated by commas; None for one run with the seed of the recipe.
        out: folder of the results.
        resume: folder of an interrupted run.
        keys: further keys of the command line.
    """
    _set_waiting_of_threads()
    path = file_of(recipe)
    keys = with_engine(keys)
    if out and resume:
        raise ConfigError("--out names a new folder and --resume an old one; expected one of them")
    all_seeds = _seeds(seeds, keys)
    ranks = ranks_of_job()
    if ranks.several and not (out or resume):
        raise ConfigError("each of several processes would create another folder; expected --out or --resume")
    name_modules(about(path).get("import") or [], f"{path}, recipe.import")
    home = (resume or out or new_folder(path)).resolve()
    begun = _begun(path, home) if resume else {}
    entries = _entries(path, keys, all_seeds, home, begun)
    for entry in entries if out and ranks.rank == 0 else []:
        if (entry.folder / RUN).exists():
            raise ConfigError(f"{out} already contains a run; resume it with --resume, or choose another folder")
    for entry in entries:
        if entry.title and ranks.rank == 0:
            print(f"\n#### {entry.title}", flush=True)
        if status := _run_entry(path, entry, smoke, ranks):
            if all_seeds and ranks.rank == 0:
                arguments = f"--seeds {','.join(map(str, all_seeds))} --resume {shlex.quote(os.path.relpath(home))}"
                print(f"or all seeds with\n  lightning-idc run {shlex.quote(str(path))} {arguments}", file=sys.stderr)
            return status
    return _compare_seeds(home, len(all_seeds)) if all_seeds and ranks.rank == 0 else 0


@dataclass(frozen=True)
class _Entry:
    """One run of a recipe.

    Args:
        folder: folder of the run.
        keys: keys of the command line, with seed and matrix entries.
        title: text that distinguishes the run; empty for a single run.
    """

    folder: Path
    keys: dict[str, Any]
    title: str


def _entries(
    path: Path, keys: Mapping[str, Any], seeds: Sequence[int], home: Path, begun: Mapping[Path, dict[str, Any]]
) -> list[_Entry]:
    """Runs of all seeds and matrix entries; new ones get the keys of existing runs.

    Args:
        path: recipe file.
        keys: keys of the command line.
        seeds: seeds to run; empty for one run with the seed of the recipe.
        home: folder of all runs.
        begun: keys of existing runs by folder.
    """
    if home in begun and not seeds:  # its keys contain the matrix entries
        return [_Entry(home, {**begun[home], **keys}, "")]
    chosen = {key.removeprefix("matrix."): str(value) for key, value in keys.items() if key.startswith("matrix.")}
    combinations = choices(path, chosen)
    common = next(iter(begun.values()), {})  # all runs share a table, so their keys must agree
    common = {k: v for k, v in common.items() if k != "seed_everything" and not k.startswith("matrix.")}
    entries = []
    every_seed: Sequence[int | None] = seeds or [None]
    for seed in every_seed:
        for choice in combinations:
            entry_keys: dict[str, Any] = {f"matrix.{axis}": name for axis, name in choice.items()}
            names = [name for name in choice.values() if len(combinations) > 1]
            parts = ["_".join(names)] if names else []
            title = ", ".join(f"{axis} {name}" for axis, name in choice.items()) if names else ""
            if seed is not None:
                entry_keys["seed_everything"] = seed
                parts, title = [f"seed_{seed}", *parts], ", ".join(filter(None, [f"seed {seed}", title]))
            folder = home.joinpath(*parts)
            entries.append(_Entry(folder, {**begun.get(folder, common), **keys, **entry_keys}, title))
    if begun and begun.keys().isdisjoint(entry.folder for entry in entries):
        folders = ", ".join(os.path.relpath(folder) for folder in begun)
        raise ConfigError(f"--resume: found runs in {folders}; expected one of these, or the --seeds of them")
    return entries


def _set_waiting_of_threads() -> None:
    """Let threads of GNU OpenMP look for work for a moment before they sleep, unless the user's environment decides.

    On an idle machine a step of a small captioner is as fast as with OpenMP's default, and 1.3 to 1.5 times as fast as
    with threads that sleep at once. Where other processes compute it is faster than with the default, and slower than
    with threads that sleep (`benchmarks/waiting_threads.py`). Torch reads the variable when imported.
    """
    if "torch" not in sys.modules and "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPIN_COUNT)


def _run_entry(path: Path, entry: _Entry, smoke: bool, ranks: Ranks) -> int:
    keys = entry.keys
    matrix = {key.removeprefix("matrix."): value for key, value in keys.items() if key.startswith("matrix.")}
    recipe = load(path, matrix)
    data = keys.get("data")
    replaced = use_data(recipe, data) if isinstance(data, str) else None
    if smoke:
        keys = {**smoke_keys(recipe, keys), **keys}
    override(
        recipe,
        {k: v for k, v in keys.items() if not k.startswith("matrix.") and not (k == "data" and isinstance(v, str))},
        replaced,
    )
    check_recipe(recipe)
    if ranks.rank == 0:
        check_models(recipe, entry.folder)
    watch = Watch(entry.folder, ranks.rank) if ranks.several else None
    try:
        return Run(recipe, entry.folder, keys, launch_for(recipe, watch), ranks).go()
    finally:
        if watch is not None:
            watch.close()


def launch_for(recipe: Recipe, watch: Watch | None) -> Launch:
    """Launcher of the stages: this process on the CPU, where another one would only import everything again.

    On a GPU the end of its process gives back all memory of a stage, and several devices need several processes.
    """
    if watch is None and all(_is_one_cpu(stage.config.get("trainer") or {}) for stage in recipe.stages):
        return run_in_process
    return Processes(early=watch is None, is_lost=watch.is_lost if watch is not None else None)


def _is_one_cpu(trainer: Mapping[str, Any]) -> bool:
    alone = all(trainer.get(key) in (None, 1) for key in ("devices", "num_nodes"))
    return alone and trainer.get("accelerator") == "cpu" and trainer.get("strategy") in (None, "auto")


def _begun(path: Path, home: Path) -> dict[Path, dict[str, Any]]:
    """Keys of existing runs in a folder, by their folder.

    Raises:
        ConfigError: there are no runs, or they are of another recipe.
    """
    begun = {}
    for file in sorted(file for depth in ("", "*/", "*/*/") for file in home.glob(f"{depth}{RUN}")):
        record = read_record(file, ("recipe", "overrides"))
        if record["recipe"] != path.name:
            raise ConfigError(f"{file.parent} contains a run of {record['recipe']}, not of {path.name}")
        begun[file.parent] = record["overrides"]
    if not begun:
        raise ConfigError(
            f"there is no run in {os.path.relpath(home)!r} to resume; runs of {path} lie in {Path('runs') / path.stem}"
        )
    return begun


def _seeds(text: str | None, keys: Mapping[str, Any]) -> list[int]:
    """Parse ``--seeds``; empty if it is None."""
    if text is None:
        return []
    seeds = text.strip("[]").replace(",", " ").split()
    if not seeds or not all(seed.isdigit() for seed in seeds) or len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds {text}: expected different whole numbers, as in --seeds 1,2,3")
    if "seed_everything" in keys:
        raise ConfigError("--seeds sets seed_everything of each run; leave --seed_everything out")
    return [int(seed) for seed in seeds]


def _compare_seeds(folder: Path, seeds: int) -> int:
    """Print and write a leaderboard of the runs of a folder."""
    from lightning_idc.cli.leaderboard import write
    from lightning_idc.report.leaderboard import as_markdown, boards
    from lightning_idc.report.result_rows import read_results

    print(f"\n#### {seeds} seeds\n", flush=True)
    try:
        table = boards(read_results(folder), folder)
    except IDCError as error:  # a recipe without ShowResults; its runs have succeeded
        print(f"no table: {error}", flush=True)
        return 0
    print(as_markdown(table), flush=True)
    return write(table, folder / "leaderboard.md")
