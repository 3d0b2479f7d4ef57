"""The verbs `run` and `recipes`."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from lightning_idc.cli.recipe import check_recipe, load, override, parse_overrides
from lightning_idc.errors import PairError

_HELP = """usage: lightning run RECIPE.yaml [--smallest] [--run_dir DIR | --resume DIR] [--key value ...]

A key is dotted, as in the recipe: --data.batch_size 16, --model.width 64, --trainer.max_epochs 2;
--stages.NAME.KEY changes one stage only.

  --smallest     the size that the tests run: ends within a minute, and learns nothing
  --run_dir DIR  where results go; runs/RECIPE/DATE_TIME otherwise
  --resume DIR   continue a run that was stopped, with the keys it was started with; further keys win over those
  --import MODULE  a module with classes of your own, installed or in this folder
  --traceback    where an error came from

`lightning-idc recipes ls` lists the recipes."""


def run(given: list[str]) -> int:
    """The verbs `run` and `recipes`."""
    return _manage(given[1:]) if given[0] == "recipes" else _run(given[1:])


def _run(given: list[str]) -> int:
    if not given or any(argument in ("-h", "--help") for argument in given):
        print(_HELP)
        return 0 if given else 2
    smallest = "--smallest" in given
    overrides = parse_overrides([argument for argument in given[1:] if argument != "--smallest"])
    run_dir, resume = (_folder(overrides, name) for name in ("run_dir", "resume"))
    if run_dir and resume:
        raise PairError("--run_dir names a new folder and --resume an old one; give one of them")
    from lightning_idc.cli.peers import Peers, place_in_job
    from lightning_idc.cli.processes import PATIENT
    from lightning_idc.cli.stages import Run, follow

    # within a larger program torch has been used, so that this process must not be forked
    imported_only = "torch" not in sys.modules
    if imported_only:
        os.environ.setdefault(*PATIENT)  # read once, when torch is imported
    place = place_in_job()
    path = Path(given[0])
    recipe = load(path if path.is_file() or path.suffix else _named(given[0]))
    if resume:
        the_run = Run.resumed(recipe.path, resume)
        overrides = {**{k: v for k, v in the_run.overrides.items() if k not in overrides}, **overrides}
    if smallest:
        overrides = {**(recipe.about.get("smallest") or {}), **overrides}
    override(recipe, overrides)
    check_recipe(recipe)
    peers = None if place is None else Peers(place)
    if peers is not None and not peers.leads:
        return follow(peers)
    if not resume:
        the_run = Run.started(recipe.path, run_dir)
    the_run.overrides, the_run.imported_only, the_run.peers = overrides, imported_only, peers
    return the_run.go(recipe)


def _folder(overrides: dict[str, Any], name: str) -> Path | None:
    value = overrides.pop(name, None)
    return None if value is None else Path(str(value))


def shipped() -> dict[str, Path]:
    """Recipes that come with the library, by name: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package / "recipes", package.parent / "recipes"):
        if folder.is_dir():
            return {
                path.relative_to(folder).with_suffix("").as_posix(): path for path in sorted(folder.rglob("*.yaml"))
            }
    return {}


def _named(name: str) -> Path:
    from lightning_idc.cli.keys import nearest

    known = shipped()
    wanted = name.removesuffix(".yaml").removeprefix("recipes/")
    if wanted not in known:
        raise PairError(f"no shipped recipe is called {name!r}; {nearest(wanted, known)}")
    return known[wanted]


def _manage(arguments: list[str]) -> int:
    verb = arguments[0] if arguments else "ls"
    if verb == "ls":
        recipes = {name: load(path).about for name, path in shipped().items()}
        width = max(map(len, recipes), default=0)
        for name, about in recipes.items():
            print(f"{name:<{width}}  {about.get('title', '')} ({about.get('minutes', '?')} min)")
        return 0
    if verb == "show" and len(arguments) == 2:
        print(_named(arguments[1]).read_text(encoding="utf-8"), end="")
        return 0
    if verb == "cp" and len(arguments) in (2, 3):
        source = _named(arguments[1])
        target = Path(arguments[2] if len(arguments) == 3 else ".")
        target = target / source.name if target.is_dir() else target
        if target.exists():
            raise PairError(f"{target} exists; name another file")
        if not target.parent.is_dir():
            raise PairError(f"there is no folder {str(target.parent)!r} to copy into")
        shutil.copyfile(source, target)
        print(target)
        return 0
    wanted = verb in ("-h", "--help")
    print("usage: lightning-idc recipes ls | show NAME | cp NAME [FILE]", file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2
