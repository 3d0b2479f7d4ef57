"""The verb `run`."""

from __future__ import annotations

import itertools
import os
import shlex
import sys
import warnings
from pathlib import Path
from typing import Any

from lightning_idc.cli.recipes import file_of
from lightning_idc.utils.errors import ConfigError, IDCError

_HELP = """usage: lightning run RECIPE.yaml [--smoke] [--run_dir DIR | --resume DIR] [--key value ...]

A key is dotted, as in the recipe: --data.batch_size 16, --model.width 64, --trainer.max_epochs 2;
--stages.NAME.KEY changes one stage only. RECIPE is a file, or the name of one that comes with the library.

  --smoke              the size that the tests run: ends within a minute, and learns nothing
  --data NAME          other pairs, as `data ls` lists them: --data folder --data.root my_pairs
  --seeds 1,2,3        one run per seed, then a table: mean, standard deviation and paired significance
  --matrix.AXIS ENTRY  one entry of a recipe that makes a table; all of them, one after another, otherwise
  --run_dir DIR        where results go; runs/RECIPE/DATE_TIME otherwise
  --engine ray         who makes the shards of data making: ray, process or array (a task of SLURM);
                       --engine.workers 4 and further arguments of RayPool, InProcess, ArrayTask
  --resume DIR         continue a run that was stopped, with the keys it was started with; further keys win over those
  --import MODULE      a module with classes of your own, installed or in this folder; or `recipe: {import: [MODULE]}`
  --traceback          where an error came from

`lightning-idc recipes ls` lists the recipes. A recipe is code: it may name any class."""


_ENGINES = {"ray": "RayPool", "process": "InProcess", "array": "ArrayTask"}


def run(given: list[str]) -> int:
    """The verb `run`."""
    given = given[1:]
    if not given or any(argument in ("-h", "--help") for argument in given):
        print(_HELP)
        return 0 if given else 2
    from lightning_idc.cli import IMPORTS, import_modules
    from lightning_idc.cli.configuration import parse_overrides
    from lightning_idc.cli.peers import place_in_job
    from lightning_idc.cli.processes import PATIENT
    from lightning_idc.cli.recipe import choices
    from lightning_idc.cli.stages import RUN, new_folder

    # within a larger program torch has been used, so that this process must not be forked
    imported_only = "torch" not in sys.modules
    if imported_only:
        os.environ.setdefault(*PATIENT)  # read once, when torch is imported
    import_modules([name for name in os.environ.get(IMPORTS, "").split(",") if name], "--import")
    if "--smallest" in given:
        warnings.warn("--smallest is called --smoke now", FutureWarning, stacklevel=2)
    flags = ("--smoke", "--smallest")
    overrides = _with_engine(parse_overrides([argument for argument in given[1:] if argument not in flags]))
    run_dir, resume = (_folder(overrides, name) for name in ("run_dir", "resume"))
    if run_dir and resume:
        raise ConfigError("--run_dir names a new folder and --resume an old one; give one of them")
    seeds = _seeds(overrides)
    path = file_of(given[0])
    smoke = any(flag in given for flag in flags)
    chosen = {key.removeprefix("matrix."): str(overrides[key]) for key in overrides if key.startswith("matrix.")}
    # a run that is resumed says itself which entry it is of; one folder of several seeds does not
    entries = [chosen] if resume and not seeds else choices(path, chosen)
    home = resume or run_dir or (new_folder(path) if seeds else None)
    for seed, choice in itertools.product(seeds or [0], entries):
        keys = {**overrides, **{f"matrix.{axis}": entry for axis, entry in choice.items()}}
        folder = home
        if seeds:
            print(f"\n#### {', '.join([f'seed {seed}', *choice.values()])}", flush=True)
            keys["seed_everything"] = seed
            folder = home and home.joinpath(f"seed_{seed}", *choice.values())
        elif len(entries) > 1:
            print(f"\n#### {', '.join(f'{axis} {entry}' for axis, entry in choice.items())}", flush=True)
            folder = home and home / "_".join(choice.values())
        begun = resume is not None and folder is not None and (not seeds or (folder / RUN).is_file())
        resumed, new = (folder, None) if begun else (None, folder)
        if resume is not None and not begun:
            keys = {**_keys_of_begun(resume), **keys}
        if status := _run_one(path, keys, new, resumed, smoke, imported_only):
            if seeds and home:
                every = f"--seeds {','.join(map(str, seeds))} --resume {shlex.quote(str(home))}"
                print(f"or all seeds with\n  lightning-idc run {shlex.quote(str(path))} {every}", file=sys.stderr)
            return status
    place = place_in_job() if seeds else None
    return _compare_seeds(home, len(seeds)) if seeds and home and (place is None or place.rank == 0) else 0


def _seeds(overrides: dict[str, Any]) -> list[int]:
    """Numbers of ``--seeds``; none where it is not given."""
    given = str(overrides.pop("seeds", ""))
    found = given.strip("[]").replace(",", " ").split()
    if not all(seed.isdigit() for seed in found) or len(set(found)) != len(found) or (given and not found):
        raise ConfigError(f"--seeds {given}: expected different whole numbers, as in --seeds 1,2,3")
    if found and "seed_everything" in overrides:
        raise ConfigError("--seeds sets seed_everything of each run; leave --seed_everything out")
    return [int(seed) for seed in found]


def _keys_of_begun(folder: Path) -> dict[str, Any]:
    """Keys of a seed that was begun, which the others are to be run with, too: one table compares them all."""
    from lightning_idc.cli.records import read_record
    from lightning_idc.cli.stages import RUN

    for record in sorted(folder.glob(f"seed_*/**/{RUN}")):
        known = read_record(record, ("recipe", "overrides"), "a run without it cannot be resumed: start anew")
        own = [key for key in known["overrides"] if key == "seed_everything" or key.startswith("matrix.")]
        return {key: value for key, value in known["overrides"].items() if key not in own}
    return {}


def _compare_seeds(folder: Path, seeds: int) -> int:
    """Show and write what the runs of a folder reached."""
    from lightning_idc.cli.leaderboard import write
    from lightning_idc.report.leaderboard import as_markdown, boards
    from lightning_idc.report.result_rows import read_results

    print(f"\n#### {seeds} seeds\n", flush=True)
    try:
        found = boards(read_results(folder), folder)
    except IDCError as error:  # a recipe without ShowResults; its runs are finished all the same
        print(f"no table: {error}", flush=True)
        return 0
    print(as_markdown(found), flush=True)
    return write(found, folder / "leaderboard.md")


def _run_one(
    path: Path,
    overrides: dict[str, Any],
    run_dir: Path | None,
    resume: Path | None,
    smoke: bool,
    imported_only: bool,
) -> int:
    """Run one entry of a recipe's matrix, or a recipe without one."""
    from lightning_idc.cli import import_modules
    from lightning_idc.cli.chosen_data import use_data
    from lightning_idc.cli.peers import Peers, place_in_job
    from lightning_idc.cli.preflight import check_models
    from lightning_idc.cli.recipe import about, check_recipe, load, override
    from lightning_idc.cli.stages import Run, follow

    place = place_in_job()
    import_modules(about(path).get("import") or [], f"{path}, recipe.import")
    if resume:
        the_run = Run.resumed(path, resume)
        overrides = {**{k: v for k, v in the_run.overrides.items() if k not in overrides}, **overrides}
    choice = {key.removeprefix("matrix."): value for key, value in overrides.items() if key.startswith("matrix.")}
    recipe = load(path, choice)
    if isinstance(overrides.get("data"), str):
        use_data(recipe, overrides["data"])
    if smoke:
        overrides = {**(recipe.about.get("smoke") or {}), **overrides}
    applied = {key for key, value in overrides.items() if key == "data" and isinstance(value, str)}
    override(recipe, {k: v for k, v in overrides.items() if k not in applied and not k.startswith("matrix.")})
    check_recipe(recipe)
    peers = None if place is None else Peers(place)
    if peers is not None and not peers.leads:
        return follow(peers)
    check_models(recipe, resume or run_dir or Path("runs"))
    if not resume:
        the_run = Run.started(recipe.path, run_dir)
    the_run.overrides, the_run.imported_only, the_run.peers = overrides, imported_only, peers
    return the_run.go(recipe)


def _with_engine(overrides: dict[str, Any]) -> dict[str, Any]:
    """``--engine`` as the launcher that the data modules of data making take."""
    name = overrides.pop("engine", None)
    given = {key: overrides.pop(key) for key in [key for key in overrides if key.startswith("engine.")]}
    if name is None:
        if given:
            raise ConfigError(f"--{next(iter(given))} belongs to --engine, which is not given: {', '.join(_ENGINES)}")
        return overrides
    if name not in _ENGINES:
        raise ConfigError(f"--engine is {name!r}; expected one of {', '.join(_ENGINES)}")
    arguments = {key.removeprefix("engine."): value for key, value in given.items()}
    return {**overrides, "data.launcher": {"class_path": _ENGINES[name], "init_args": arguments}}


def _folder(overrides: dict[str, Any], name: str) -> Path | None:
    value = overrides.pop(name, None)
    return None if value is None else Path(str(value))
