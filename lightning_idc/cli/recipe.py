"""Recipes: one YAML of stages, each an ordinary LightningCLI configuration that runs in a process of its own.

    recipe: {title, needs, expect, minutes, smallest: {dotted key: value}}
    base: configuration that all stages share
    stages:
      - {name: train, run: fit, config: {...}}       # merged over base; `callbacks+` appends to a list
      - {name: test, run: test}                      # without ckpt_path: the best one of the last fit of that class

A value may name what an earlier stage made: ``${stages.train.best}``, and the folder of the run: ``${run_dir}``.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from lightning_idc.errors import PairError

VERBS = ("fit", "validate", "test", "predict")
ABOUT = ("title", "needs", "expect", "minutes", "smallest")
_REFERENCE = re.compile(r"\$\{(?:run_dir|stages\.([\w-]+)\.best)\}")
_ANY_REFERENCE = re.compile(r"\$\{[^}]*\}")


@dataclass
class Stage:
    """One process of a recipe.

    Args:
        name: unique within the recipe; the name of its folder.
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


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number and a key stands once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep) for key, _ in node.value]
        twice = [key for number, key in enumerate(keys) if key in keys[:number] and key != "<<"]
        if twice:
            raise yaml.constructor.ConstructorError(None, None, f"the key {twice[0]!r} stands twice", node.start_mark)
        return super().construct_mapping(node, deep)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def parse_yaml(text: str) -> Any:
    """Value of a YAML text.

    Raises:
        yaml.YAMLError: it is none, or names a key twice.
    """
    return yaml.load(text, _Loader)


def read_yaml(path: Path) -> dict[str, Any]:
    """Mapping of a YAML file.

    Raises:
        PairError: the file is missing or holds something else.
    """
    try:
        found = parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PairError(f"there is no file {str(path)!r}; check the path") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise PairError(f"{path} is not readable as YAML: {error}") from error
    except OSError as error:
        raise PairError(f"{path} cannot be read: {error.strerror}") from error
    if not isinstance(found, dict):
        raise PairError(
            f"{path} holds {'nothing' if found is None else type(found).__name__}; expected keys with values"
        )
    return found


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Copy of ``base`` with ``over`` merged in; a key ending in ``+`` appends to a list, another class replaces."""
    merged = copy.deepcopy(base)
    for key, value in over.items():
        name = key.removesuffix("+")
        if key.endswith("+"):
            merged[name] = [*(merged.get(name) or []), *copy.deepcopy(value if isinstance(value, list) else [value])]
        elif isinstance(value, dict) and isinstance(merged.get(name), dict) and _same_class(merged[name], value):
            merged[name] = merge(merged[name], value)
        else:
            merged[name] = merge({}, value) if isinstance(value, dict) else copy.deepcopy(value)
    return merged


def _same_class(a: dict[str, Any], b: dict[str, Any]) -> bool:
    return "class_path" not in b or a.get("class_path") == b["class_path"]


def load(path: Path) -> Recipe:
    """Read a recipe.

    Raises:
        PairError: the file is missing or is not a recipe.
    """
    raw = read_yaml(path)
    if not isinstance(raw.get("stages"), list) or not raw["stages"]:
        raise PairError(
            f"{path} is not a recipe: expected the keys recipe, base and stages; see `lightning-idc recipes show`"
        )
    unknown = set(raw) - {"recipe", "base", "stages"}
    if unknown:
        raise PairError(f"{path}: unknown key {min(unknown)!r}; expected recipe, base, stages")
    about, base = raw.get("recipe") or {}, raw.get("base") or {}
    if not isinstance(about, dict) or not isinstance(base, dict):
        raise PairError(f"{path}: expected keys with values under recipe and base")
    extra = set(about) - set(ABOUT)
    if extra:
        raise PairError(f"{path}: unknown key {min(extra)!r} under recipe; expected {', '.join(ABOUT)}")
    stages = [_stage(path, number, entry, base) for number, entry in enumerate(raw["stages"], 1)]
    names = [stage.name for stage in stages]
    if len(set(names)) != len(names):
        raise PairError(f"{path}: stages must have different names; found {', '.join(names)}")
    for number, stage in enumerate(stages):
        _check_references(
            stage.config, f"{path}, stage {stage.name}", [s.name for s in stages[:number] if s.run == "fit"]
        )
    return Recipe(path, about, stages)


def _stage(path: Path, number: int, entry: Any, base: dict[str, Any]) -> Stage:
    if not isinstance(entry, dict) or set(entry) - {"name", "run", "config"} or entry.get("run") not in VERBS:
        raise PairError(f"{path}: stage {number} needs name, run ({', '.join(VERBS)}) and config; found {entry!r:.200}")
    name, config = str(entry.get("name") or ""), entry.get("config") or {}
    if not re.fullmatch(r"\w[\w-]*", name):
        raise PairError(
            f"{path}: stage {number} is called {name!r}; expected letters, digits, - and _: it names a folder"
        )
    if not isinstance(config, dict):
        raise PairError(f"{path}: stage {name}: expected keys with values under config, found {config!r:.200}")
    return Stage(name, entry["run"], merge(base, config))


def _check_references(value: Any, where: str, earlier: list[str]) -> None:
    """Refuse references that no earlier stage can fill, before the first one has run."""
    if isinstance(value, (dict, list)):
        for inner in value.values() if isinstance(value, dict) else value:
            _check_references(inner, where, earlier)
    elif isinstance(value, str):
        for found in _ANY_REFERENCE.findall(value):
            match = _REFERENCE.fullmatch(found)
            if match is None or (match.group(1) and match.group(1) not in earlier):
                known = ["${run_dir}", *(f"${{stages.{name}.best}}" for name in earlier)]
                raise PairError(f"{where}: {found} cannot be filled in; here there are {', '.join(known)}")


def resolve(value: Any, run_dir: Path, best: dict[str, str]) -> Any:
    """Copy of a configuration with its references to the run and to earlier stages filled in."""
    if isinstance(value, dict):
        return {key: resolve(inner, run_dir, best) for key, inner in value.items()}
    if isinstance(value, list):
        return [resolve(inner, run_dir, best) for inner in value]
    if not isinstance(value, str):
        return value

    def fill(match: re.Match[str]) -> str:
        if match.group(1) is None:
            return str(run_dir)
        if not best.get(match.group(1)):
            raise PairError(
                f"{match.group()}: the stage {match.group(1)!r} left no checkpoint; is saving switched off?"
            )
        return best[match.group(1)]

    return _REFERENCE.sub(fill, value)


def set_key(config: dict[str, Any], path: list[str], value: Any) -> None:
    """Set a dotted key; ``init_args`` may be left out, and a number is a place in a list."""
    at: Any = config
    names = list(path)
    while names:
        name = names.pop(0)
        if isinstance(at, list):
            if not name.isdigit() or int(name) >= len(at):
                raise PairError(f"--{'.'.join(path)}: {name!r} is no place in a list of {len(at)}; they count from 0")
            if not names:
                at[int(name)] = value
                return
            at = at[int(name)]
            continue
        if name not in ("class_path", "init_args", "dict_kwargs") and "class_path" in at:
            at = at.setdefault("init_args", {})
        if not names:
            at[name] = value
            return
        if not isinstance(at.get(name), (dict, list)):
            at[name] = {}
        at = at[name]


def parse_overrides(arguments: list[str]) -> dict[str, Any]:
    """``--a.b value`` and ``--a.b=value`` to ``{"a.b": value}``, values read as YAML."""
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        flag = rest.pop(0)
        if not flag.startswith("--") or flag == "--":
            raise PairError(f"expected --key value, found {flag!r}")
        key, equals, value = flag[2:].partition("=")
        if not equals:
            if not rest or rest[0].startswith("--"):
                raise PairError(f"--{key} has no value; expected --{key} VALUE")
            value = rest.pop(0)
        try:
            found[key] = parse_yaml(value)
        except yaml.YAMLError as error:
            raise PairError(f"--{key}: {value!r} is not readable as a value: {error}") from error
    return found


def override(recipe: Recipe, overrides: dict[str, Any]) -> None:
    """Set dotted keys in all stages that have them, or in one with ``stages.<name>.``; nothing is checked twice.

    ``model.width`` is short for ``model.init_args.width``. A key of the model or the data goes to the stages whose
    class has such an argument.

    Raises:
        PairError: no stage has such a key; the nearest one that exists is named.
    """
    from lightning_idc.cli.keys import TOP, arguments_of, check, class_of, nearest

    names = [stage.name for stage in recipe.stages]
    for key, value in overrides.items():
        parts = key.split(".")
        stages = recipe.stages
        if parts[0] == "stages":
            if len(parts) < 3 or parts[1] not in names:
                raise PairError(
                    f"--{key}: there is no such stage; {nearest(parts[1] if len(parts) > 1 else '', names)}"
                )
            stages, parts = [stage for stage in stages if stage.name == parts[1]], parts[2:]
        if parts[0] not in TOP:
            check({parts[0]: value}, f"--{key}")  # says why
        if parts[0] not in ("model", "data") or len(parts) == 1:
            for stage in stages:
                set_key(stage.config, parts, value)
            continue
        name = parts[2] if parts[1] == "init_args" and len(parts) > 2 else parts[1]
        valid: set[str] = set()
        taken = False
        for stage in stages:
            part = stage.config.get(parts[0])
            if not isinstance(part, dict) or "class_path" not in part:
                continue
            known = arguments_of(class_of(part["class_path"]))
            valid |= known or set()
            if known is None or name in known or name == "class_path":
                set_key(part, parts[1:], value)
                taken = True
        if not taken:
            raise PairError(f"--{key}: {parts[0]} has no argument {name!r}; {nearest(name, valid)}")


def check_recipe(recipe: Recipe) -> None:
    """Refuse unknown keys and values of the wrong type in any stage, before the first one starts.

    Raises:
        PairError: what is wrong and what was expected.
    """
    from lightning_idc.cli.keys import check
    from lightning_idc.cli.training import check_types

    for stage in recipe.stages:
        where = f"{recipe.path.name}, stage {stage.name}"
        check(stage.config, where)
        check_types(stage.run, copy.deepcopy(stage.config), where)
