"""Recipes: one YAML of stages, each an ordinary LightningCLI configuration that runs in a process of its own.

    recipe: {title, needs, expect, minutes, smallest: {dotted key: value}}
    base: configuration that all stages share
    stages:
      - {name: train, run: fit, config: {...}}       # merged over base; `callbacks+` appends to a list
      - {name: test, run: test}                      # without ckpt_path it takes the best one of the last fit

A value may name what an earlier stage made: ``${stages.train.best}``, and the folder of the run: ``${run_dir}``.
"""

from __future__ import annotations

import copy
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightning_idc.errors import PairError

VERBS = ("fit", "validate", "test", "predict")
_REFERENCE = re.compile(r"\$\{(run_dir|stages\.([\w-]+)\.best)\}")


@dataclass
class Stage:
    """One process of a recipe.

    Args:
        name: unique within the recipe.
        run: LightningCLI verb.
        config: what it is run with.
    """

    name: str
    run: str
    config: dict[str, Any]


@dataclass
class Recipe:
    """A recipe as read from its file.

    Args:
        path: of the file.
        about: title, needs, expect, minutes, smallest.
        stages: in order.
    """

    path: Path
    about: dict[str, Any]
    stages: list[Stage]


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Copy of ``base`` with ``over`` merged in; a key ending in ``+`` appends to a list, another class replaces."""
    merged = copy.deepcopy(base)
    for key, value in over.items():
        name = key.removesuffix("+")
        if key.endswith("+"):
            merged[name] = [*(merged.get(name) or []), *copy.deepcopy(value)]
        elif isinstance(value, dict) and isinstance(merged.get(name), dict) and _same_class(merged[name], value):
            merged[name] = merge(merged[name], value)
        else:
            merged[name] = copy.deepcopy(value)
    return merged


def _same_class(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return "class_path" not in b or a.get("class_path") == b["class_path"]


def load(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        PairError: the file is missing or is not a recipe.
    """
    if not path.is_file():
        known = ", ".join(str(p.name) for p in shipped())
        raise PairError(f"there is no recipe {str(path)!r}; `lightning-idc recipes ls` lists those that are shipped: {known}")
    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise PairError(f"{path} is not readable as YAML: {error}") from error
    if not isinstance(raw, dict) or not raw.get("stages"):
        raise PairError(f"{path} is not a recipe: expected the keys recipe, base and stages; see `lightning-idc recipes show`")
    unknown = set(raw) - {"recipe", "base", "stages"}
    if unknown:
        raise PairError(f"{path}: unknown key {min(unknown)!r}; expected recipe, base, stages")
    stages = []
    for number, entry in enumerate(raw["stages"]):
        extra = set(entry) - {"name", "run", "config"}
        if extra or entry.get("run") not in VERBS or not entry.get("name"):
            raise PairError(f"{path}: stage {number + 1} needs a name, run ({', '.join(VERBS)}) and config; found {entry!r:.200}")
        stages.append(Stage(str(entry["name"]), entry["run"], merge(raw.get("base") or {}, entry.get("config") or {})))
    names = [stage.name for stage in stages]
    if len(set(names)) != len(names):
        raise PairError(f"{path}: stages must have different names; found {names}")
    return Recipe(path, raw.get("recipe") or {}, stages)


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """``--a.b value`` and ``--a.b=value`` to ``{"a.b": value}``, values read as YAML."""
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--"):
            raise PairError(f"expected --key value, found {flag!r}")
        key, equals, value = flag[2:].partition("=")
        if not equals:
            if not rest:
                raise PairError(f"--{key} has no value")
            value = rest.pop(0)
        found[key] = yaml.safe_load(value)
    return found


def override(recipe: Recipe, overrides: dict[str, Any]) -> None:
    """Set dotted keys in all stages that have them, or in one with ``stages.<name>.``.

    ``model.width`` is short for ``model.init_args.width``. A key of the model or the data goes to the stages whose
    class has such an argument.

    Raises:
        PairError: no stage has such a key; the nearest one that exists is named.
    """
    from lightning_idc.cli.keys import arguments_of, check, class_of, nearest

    names = [stage.name for stage in recipe.stages]
    for key, value in overrides.items():
        parts = key.split(".")
        stages = recipe.stages
        if parts[0] == "stages":
            if len(parts) < 3 or parts[1] not in names:
                raise PairError(f"--{key}: there is no such stage; {nearest(parts[1] if len(parts) > 1 else '', names)}")
            stages, parts = [stage for stage in stages if stage.name == parts[1]], parts[2:]
        if parts[0] in ("model", "data") and len(parts) > 1:
            path = parts[2:] if parts[1] == "init_args" else parts[1:]
            valid: set[str] = set()
            taken = False
            for stage in stages:
                known = arguments_of(class_of(stage.config[parts[0]]["class_path"]))
                valid |= known or set()
                if known is None or path[0] in known:
                    _set(stage.config[parts[0]].setdefault("init_args", {}), path, value)
                    taken = True
            if not taken:
                raise PairError(f"--{key}: {parts[0]} has no argument {path[0]!r}; {nearest(path[0], valid)}")
        else:
            for stage in stages:
                _set(stage.config, parts, value)
    for stage in recipe.stages:
        check(stage.config, f"{recipe.path.name}, stage {stage.name}")


def _set(config: dict[str, Any], path: list[str], value: Any) -> None:
    for name in path[:-1]:
        if not isinstance(config.get(name), dict):
            config[name] = {}
        config = config[name]
    config[path[-1]] = value


def resolve(value: Any, run_dir: Path, best: dict[str, str]) -> Any:
    """Copy of a configuration with its references to the run and to earlier stages filled in."""
    if isinstance(value, dict):
        return {key: resolve(inner, run_dir, best) for key, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, run_dir, best) for inner in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        if match.group(2) is None:
            return str(run_dir)
        if not best.get(match.group(2)):
            raise PairError(f"{match.group()} is not there: no earlier stage of that name left a checkpoint; earlier: {list(best)}")
        return best[match.group(2)]

    return _REFERENCE.sub(fill, value)


def shipped() -> list[Path]:
    """Recipes that come with the library: beside the package in a checkout, inside it when installed."""
    package = Path(__file__).resolve().parent.parent
    for folder in (package.parent / "recipes", package / "recipes"):
        if folder.is_dir():
            return sorted(folder.rglob("*.yaml"))
    return []


def _named(name: str) -> Path:
    for path in shipped():
        if name in (path.name, path.stem, str(path)) or str(path).endswith(f"/{name}.yaml"):
            return path
    raise PairError(f"no shipped recipe is called {name!r}; there are {', '.join(p.stem for p in shipped())}")


def run(given: list[str]) -> int:
    """The verbs `run` and `recipes`."""
    if given[0] == "recipes":
        return _manage(given[1:])
    from lightning_idc.cli.stages import run_recipe

    if len(given) < 2 or given[1] in ("-h", "--help"):
        print(
            "usage: lightning run RECIPE.yaml [--smallest] [--run_dir DIR | --resume DIR] [--key value ...]\n\n"
            "A key is dotted, as in the recipe: --data.batch_size 16, --model.width 64, --trainer.max_epochs 2;\n"
            "--stages.NAME.KEY changes one stage only. --resume continues a run that was stopped.\n\n"
            "`lightning-idc recipes ls` lists the recipes."
        )
        return 0 if len(given) > 1 else 2
    arguments = given[2:]
    smallest = "--smallest" in arguments
    overrides = parse_overrides([argument for argument in arguments if argument != "--smallest"])
    run_dir, resume = overrides.pop("run_dir", None), overrides.pop("resume", None)
    recipe = load(Path(given[1]))
    small = (recipe.about.get("smallest") or {}) if smallest else {}
    override(recipe, {**small, **overrides})
    return run_recipe(recipe, None if run_dir is None else Path(run_dir), None if resume is None else Path(resume))


def _manage(arguments: list[str]) -> int:
    verb = arguments[0] if arguments else "ls"
    if verb == "ls":
        for path in shipped():
            about = load(path).about
            print(f"{path.stem:<22} {about.get('title', '')}")
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
        shutil.copyfile(source, target)
        print(target)
        return 0
    print("usage: lightning-idc recipes ls | show NAME | cp NAME [FILE]", file=sys.stderr)
    return 2 if verb not in ("-h", "--help") else 0
