"""Runs of a recipe: one for each seed and each entry of its matrix."""

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
from lightning_idc.cli.recipes.launch import Launch, Processes, run_here
from lightning_idc.cli.recipes.overrides import check_recipe, override, use_data, with_engine
from lightning_idc.cli.recipes.ranks import Ranks, Watch, ranks_of_job
from lightning_idc.cli.recipes.run import RUN, Run, new_folder, read_record
from lightning_idc.cli.recipes.shipped import file_of
from lightning_idc.utils.errors import ConfigError, IDCError


def run_recipe(
    recipe: str, *, smoke: bool, seeds: str | None, out: Path | None, resume: Path | None, keys: dict[str, Any]
) -> int:
    """Run a recipe for several seeds and all entries of its matrix; the arguments are those of the verb `run`.

    Args:
        recipe: YAML file or name.
        smoke: whether at the size of tests.
        seeds: numbers separated by commas; None for one run with the seed of the recipe.
        out: folder of the results.
        resume: folder of a stopped run.
        keys: further keys of the command line.
    """
    # active waiting is 10 % faster on an idle machine and 3 times slower on a busy one; torch reads it when imported
    if "torch" not in sys.modules:
        os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    path = file_of(recipe)
    keys = with_engine(keys)
    if out and resume:
        raise ConfigError("--out names a new folder and --resume an old one; expected one of them")
    all_seeds = _seeds(seeds, keys)
    ranks = ranks_of_job()
    if ranks.several and not (out or resume):
        raise ConfigError("each of several processes would make a folder of its own; expected --out or --resume")
    name_modules(about(path).get("import") or [], f"{path}, recipe.import")
    home = (resume or out or new_folder(path)).resolve()
    begun = _begun(path, home) if resume else {}
    entries = _entries(path, keys, all_seeds, home, begun)
    for entry in entries if out and ranks.rank == 0 else []:
        if (entry.folder / RUN).exists():
            raise ConfigError(f"{out} holds a run already; continue it with --resume, or name another folder")
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
        folder: of the run.
        keys: of the command line, with the seed and the entry of the matrix.
        title: what tells it from the others.
    """

    folder: Path
    keys: dict[str, Any]
    title: str


def _entries(
    path: Path, keys: Mapping[str, Any], seeds: Sequence[int], home: Path, begun: Mapping[Path, dict[str, Any]]
) -> list[_Entry]:
    """Runs of all seeds and all entries of the matrix; one that was not begun gets the keys of those that were.

    Args:
        path: of the recipe.
        keys: of the command line.
        seeds: to run; none for one run with the seed of the recipe.
        home: folder of all runs.
        begun: folder of each run that was begun, and its keys.
    """
    if home in begun and not seeds:  # which says itself what entry it is of
        return [_Entry(home, {**begun[home], **keys}, "")]
    chosen = {key.removeprefix("matrix."): str(value) for key, value in keys.items() if key.startswith("matrix.")}
    combinations = choices(path, chosen)
    common = next(iter(begun.values()), {})  # one table compares them all
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
        shown = ", ".join(os.path.relpath(folder) for folder in begun)
        raise ConfigError(f"--resume: found runs in {shown}; expected one of these, or the --seeds of them")
    return entries


def _run_entry(path: Path, entry: _Entry, smoke: bool, ranks: Ranks) -> int:
    keys = entry.keys
    matrix = {key.removeprefix("matrix."): value for key, value in keys.items() if key.startswith("matrix.")}
    recipe = load(path, matrix)
    data = keys.get("data")
    if isinstance(data, str):
        use_data(recipe, data)
    if smoke:
        keys = {**(recipe.about.get("smoke") or {}), **keys}
    override(
        recipe,
        {k: v for k, v in keys.items() if not k.startswith("matrix.") and not (k == "data" and isinstance(v, str))},
    )
    check_recipe(recipe)
    if ranks.rank == 0:
        check_models(recipe, entry.folder)
    watch = Watch(entry.folder, ranks.rank) if ranks.several else None
    try:
        return Run(recipe, entry.folder, keys, launch_for(recipe, smoke, watch), ranks).go()
    finally:
        if watch is not None:
            watch.close()


def launch_for(recipe: Recipe, smoke: bool, watch: Watch | None) -> Launch:
    """How to run the stages: at smoke size in this process, unless Lightning would start further ones."""
    if smoke and watch is None and all(_is_small(stage.config.get("trainer") or {}) for stage in recipe.stages):
        return run_here
    return Processes(early=watch is None, is_lost=watch.is_lost if watch is not None else None)


def _is_small(trainer: Mapping[str, Any]) -> bool:
    alone = all(trainer.get(key) in (None, 1) for key in ("devices", "num_nodes"))
    return alone and trainer.get("accelerator") == "cpu" and trainer.get("strategy") in (None, "auto")


def _begun(path: Path, home: Path) -> dict[Path, dict[str, Any]]:
    """Keys of the runs that were begun in a folder, by their folder.

    Raises:
        ConfigError: there is none, or it is of another recipe.
    """
    begun = {}
    for file in sorted(file for depth in ("", "*/", "*/*/") for file in home.glob(f"{depth}{RUN}")):
        record = read_record(file, ("recipe", "overrides"))
        if record["recipe"] != path.name:
            raise ConfigError(f"{file.parent} holds a run of {record['recipe']}, not of {path.name}")
        begun[file.parent] = record["overrides"]
    if not begun:
        raise ConfigError(
            f"there is no run in {os.path.relpath(home)!r} to resume; runs of {path} lie in {Path('runs') / path.stem}"
        )
    return begun


def _seeds(text: str | None, keys: Mapping[str, Any]) -> list[int]:
    """Numbers of ``--seeds``; none where it was not given."""
    if text is None:
        return []
    seeds = text.strip("[]").replace(",", " ").split()
    if not seeds or not all(seed.isdigit() for seed in seeds) or len(set(seeds)) != len(seeds):
        raise ConfigError(f"--seeds {text}: expected different whole numbers, as in --seeds 1,2,3")
    if "seed_everything" in keys:
        raise ConfigError("--seeds sets seed_everything of each run; leave --seed_everything out")
    return [int(seed) for seed in seeds]


def _compare_seeds(folder: Path, seeds: int) -> int:
    """Show and write what the runs of a folder reached."""
    from lightning_idc.cli.leaderboard import write
    from lightning_idc.report.leaderboard import as_markdown, boards
    from lightning_idc.report.result_rows import read_results

    print(f"\n#### {seeds} seeds\n", flush=True)
    try:
        table = boards(read_results(folder), folder)
    except IDCError as error:  # a recipe without ShowResults; its runs are finished all the same
        print(f"no table: {error}", flush=True)
        return 0
    print(as_markdown(table), flush=True)
    return write(table, folder / "leaderboard.md")
