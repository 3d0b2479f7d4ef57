"""Recipes: one YAML of stages, each an ordinary LightningCLI configuration that runs in a process of its own.

    defaults: [cpu, rendered]                        # files of recipes/_base, merged in order; this file wins
    recipe: {title, requirements, expected, minutes, smoke: {dotted key: value}, import: [module]}
    base: configuration that all stages share
    stages:
      - {name: pretrain_backbone}                    # as a file of `defaults` defines it
      - {name: train, run: fit, config: {...}}       # merged over base
      - {name: again, like: train, config: {...}}    # merged over what `train` says
      - {name: test, of: train}                      # the model and the best checkpoint of `train`
    matrix: {dataset: {levir_cc: {recipe, base, stages: {train: {config}}}}}    # merged over the file, one at a time

Classes need no module (``class_path: ProCap``). ``callbacks+`` appends to a list; ``init_args+`` beside another class
keeps the arguments of the class before. A value may name another one, ``${base.data.init_args.root}``, what an earlier
stage made, ``${stages.train.best}``, and the folder of the run, ``${run_dir}``.
"""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from lightning_idc.cli.configuration import copied, merge, normalised, read_yaml, set_key
from lightning_idc.cli.errors import TOP, unknown_key
from lightning_idc.cli.recipes import shipped_folder
from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import ConfigError, IDCError
from lightning_idc.utils.files import digest
from lightning_idc.utils.names import class_of, nearest, with_full_names

VERBS = ("fit", "validate", "test", "predict")
SECTIONS = ("recipe", "defaults", "base", "stages", "matrix")
ABOUT = ("title", "requirements", "expected", "minutes", "smoke", "import")
RENAMED = {"needs": "requirements", "expect": "expected", "smallest": "smoke"}
_ENTRY = {"name", "run", "of", "like", "config"}


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

    @property
    def model(self) -> str:
        """Path of the model's class."""
        return (self.config.get("model") or {}).get("class_path", "")


@dataclass
class Recipe:
    """A recipe as read from its file.

    Args:
        path: of the file.
        about: title, requirements, expected, minutes, smoke, import.
        stages: in order.
        choice: entry of each axis of the matrix.
        keys: per stage, a digest of what the recipe and its defaults say of it and of the stages it takes weights from.
    """

    path: Path
    about: dict[str, Any]
    stages: list[Stage]
    choice: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)


def about(path: Path) -> dict[str, Any]:
    """Title, requirements and the like of a recipe, without its stages."""
    return _read(path, full_names=False)["recipe"]


def axes(path: Path) -> dict[str, dict[str, Any]]:
    """Axes of the matrix of a recipe, with their entries.

    Raises:
        ConfigError: an axis that has no entries, or an entry that changes something else than a recipe has.
    """
    found = _read(path, full_names=False)
    for axis, entries in found["matrix"].items():
        if not isinstance(entries, dict) or not entries:
            raise ConfigError(
                f"{path}: matrix.{axis}: expected entries with what each of them changes, found {entries!r}"
            )
        for name, entry in entries.items():
            where = f"{path}: matrix.{axis}.{name}"
            if not isinstance(entry or {}, dict) or set(entry or {}) - {"recipe", "base", "stages"}:
                raise ConfigError(f"{where}: expected recipe, base and stages, found {entry!r:.200}")
            for stage in (entry or {}).get("stages") or {}:
                if stage not in found["order"]:
                    raise ConfigError(f"{where}: there is no stage {stage!r}; {nearest(stage, found['order'])}")
    return found["matrix"]


def choices(path: Path, chosen: Mapping[str, Any]) -> list[dict[str, str]]:
    """Entries of the matrix of a recipe that are to be run, one of each axis; one empty choice without a matrix.

    Raises:
        ConfigError: an axis or an entry that the recipe does not have.
    """
    matrix = axes(path)
    for axis, entry in chosen.items():
        if axis not in matrix:
            hint = nearest(axis, matrix) if matrix else "it has no matrix"
            raise ConfigError(f"--matrix.{axis}: {path} has no such axis; {hint}")
        if entry not in matrix[axis]:
            raise ConfigError(f"--matrix.{axis}: there is no entry {str(entry)!r}; {nearest(str(entry), matrix[axis])}")
    found = itertools.product(*([chosen[axis]] if axis in chosen else list(matrix[axis]) for axis in matrix))
    return [dict(zip(matrix, entries, strict=True)) for entries in found]


def load(path: Path, choice: Mapping[str, str] | None = None) -> Recipe:
    """Read a recipe.

    Args:
        path: of the file.
        choice: entry of each axis of its matrix; the first one where nothing is given.

    Raises:
        ConfigError: the file is missing or is not a recipe.
    """
    chosen = choices(path, choice or {})[0]
    found = _read(path)
    if not found["order"]:
        raise ConfigError(
            f"{path} is not a recipe: expected the keys recipe, base and stages; see `lightning-idc recipes show`"
        )
    for axis, entry in chosen.items():
        found = _joined(found, found["matrix"][axis][entry] or {})
    base = found["base"]
    stages: dict[str, Stage] = {}
    for name in found["order"]:
        stages[name] = _stage(f"{path}, stage {name}", found, name, stages)
    earlier: list[str] = []
    for name, stage in stages.items():
        filled = _filled(stage.config, f"{path}, stage {name}", earlier, base)
        earlier += [name] if stage.run == "fit" else []
        stage.config = with_full_names(filled)
    return Recipe(path, found["recipe"], list(stages.values()), chosen, _keys(list(stages.values())))


def _keys(stages: Sequence[Stage]) -> dict[str, str]:
    """Digests of stages, in which a class counts by its name, so that one that moves to another module is the same."""

    def said(value: Any) -> Any:
        if isinstance(value, dict):
            of_class = {"class_path": str(value["class_path"]).rpartition(".")[2]} if "class_path" in value else {}
            return [(key, said(inner)) for key, inner in sorted({**value, **of_class}.items(), key=str)]
        return [said(inner) for inner in value] if isinstance(value, list) else repr(value)

    keys: dict[str, str] = {}
    for number, stage in enumerate(stages):
        earlier, text = stages[:number], repr(said(stage.config))
        # predictions write files that any later stage may read
        used = {
            other.name
            for other in earlier
            if other.run == "predict" or f"{{stages.{other.name}.best}}" in text or f"{{run_dir}}/{other.name}/" in text
        }
        if stage.run != "fit" and not stage.config.get("ckpt_path"):
            used |= {other.name for other in earlier if other.run == "fit" and other.model == stage.model}
        keys[stage.name] = digest(stage.run, text, *(keys[other.name] for other in earlier if other.name in used))
    return keys


def _read(path: Path, full_names: bool = True) -> dict[str, Any]:
    """Sections of a recipe, merged over those of its defaults; its stages as entries by name, and their order.

    Args:
        path: of the file.
        full_names: look up the names of classes, which may import Lightning and torch.
    """
    raw = read_yaml(path)
    if unknown := set(raw) - set(SECTIONS):
        raise ConfigError(f"{path}: unknown key {min(unknown)!r}; expected {', '.join(SECTIONS)}")
    found: dict[str, Any] = {"recipe": {}, "base": {}, "entries": {}, "matrix": {}, "order": []}
    for name in raw.get("defaults") or []:
        found = _joined(found, _read(_default(path, str(name)), full_names))
    try:
        raw = _normalised(raw) if full_names else raw
    except IDCError as error:
        raise ConfigError(f"{path}: {error}") from error
    entries = raw.get("stages") or []
    if not isinstance(entries, list):
        raise ConfigError(f"{path}: expected a list under stages, found {entries!r:.200}")
    for number, entry in enumerate(entries, 1):
        _check_entry(path, number, entry)
    order = [entry["name"] for entry in entries]
    if len(set(order)) != len(order):
        raise ConfigError(f"{path}: stages must have different names; found {', '.join(order)}")
    sections = {name: raw.get(name) or {} for name in ("recipe", "base", "matrix")}
    for name, section in sections.items():
        if not isinstance(section, dict):
            raise ConfigError(f"{path}: expected keys with values under {name}, found {section!r:.200}")
    sections["recipe"] = _about(path, sections["recipe"])
    # YAML reads 16 and off as a number and a switch; the command line and folders have their text
    sections["matrix"] = {
        axis: {str(name): entry for name, entry in entries.items()} if isinstance(entries, dict) else entries
        for axis, entries in sections["matrix"].items()
    }
    return {**_joined(found, {**sections, "stages": {entry["name"]: entry for entry in entries}}), "order": order}


def _normalised(raw: dict[str, Any]) -> dict[str, Any]:
    """Sections with full names of classes, wherever a configuration stands in them."""
    found = with_full_names(raw)
    if isinstance(found.get("base"), dict):
        found["base"] = normalised(found["base"])
    for entry in found["stages"] if isinstance(found.get("stages"), list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("config"), dict):
            entry["config"] = normalised(entry["config"])
    return found


def _about(path: Path, given: dict[str, Any]) -> dict[str, Any]:
    for old in set(RENAMED) & set(given):
        warnings.warn(f"{path}: recipe.{old} is called {RENAMED[old]} now", FutureWarning, stacklevel=2)
    given = {RENAMED.get(key, key): value for key, value in given.items()}
    if extra := set(given) - set(ABOUT):
        raise ConfigError(f"{path}: unknown key {min(extra)!r} under recipe; expected {', '.join(ABOUT)}")
    return given


def _default(path: Path, name: str) -> Path:
    """File of ``defaults``: beside the recipe, or in the folder ``_base`` of it, of a parent, or of this library."""
    homes = [
        path.parent,
        *(parent / "_base" for parent in (path.parent, path.parent.parent)),
        shipped_folder() / "_base",
    ]
    for home in homes:
        if (home / f"{name}.yaml").is_file():
            return home / f"{name}.yaml"
    known = {found.stem for home in homes[1:] for found in home.glob("*.yaml")}
    raise ConfigError(f"{path}: defaults name {name!r}, for which there is no file; {nearest(name, known)}")


def _check_entry(path: Path, number: int, entry: Any) -> None:
    if not isinstance(entry, dict) or set(entry) - _ENTRY or ("run" in entry and entry["run"] not in VERBS):
        raise ConfigError(
            f"{path}: stage {number} needs name, run ({', '.join(VERBS)}) and config, or name and of; "
            f"found {entry!r:.200}"
        )
    if not re.fullmatch(r"\w[\w-]*", str(entry.get("name") or "")):
        raise ConfigError(
            f"{path}: stage {number} is called {entry.get('name', '')!r}; expected letters, digits, - and _: it names "
            "a folder"
        )
    if not isinstance(entry.get("config") or {}, dict):
        raise ConfigError(
            f"{path}: stage {entry['name']}: expected keys with values under config, found {entry['config']!r:.200}"
        )


def _joined(found: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Sections with those of ``over`` merged in; a stage that is null there does not run."""
    entries, order = dict(found["entries"]), list(found["order"])
    for name, entry in (over.get("stages") or over.get("entries") or {}).items():
        if entry is None:
            order = [other for other in order if other != name]
        else:
            entries[name] = _entry(entries.get(name) or {}, entry)
    parts = {name: merge(found[name], over.get(name) or {}) for name in ("recipe", "base")}
    matrix = {**found["matrix"], **(over.get("matrix") or {})}
    return {**parts, "matrix": matrix, "entries": entries, "order": order}


def _entry(before: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Entry with another one over it; configurations stay a list, since ``init_args+`` needs what is below both."""
    layers = over["layers"] if "layers" in over else [over.get("config") or {}]
    return {**before, **over, "layers": [*before.get("layers", []), *layers]}


def _like(where: str, entries: dict[str, Any], name: str, trail: tuple[str, ...]) -> dict[str, Any]:
    """Entry of a stage, merged over the entry that it is to be like."""
    entry = entries[name]
    if not (other := entry.get("like")):
        return entry
    if other not in entries or other in (*trail, name):
        raise ConfigError(f"{where}: like names {other!r}; {nearest(str(other), set(entries) - {*trail, name})}")
    return _entry(_like(where, entries, other, (*trail, name)), entry)


def _stage(where: str, found: dict[str, Any], name: str, earlier: dict[str, Stage]) -> Stage:
    entry = _like(where, found["entries"], name, ())
    config = found["base"]
    if of := entry.get("of"):
        trained = {name: stage for name, stage in earlier.items() if stage.run == "fit"}
        if of not in trained:
            raise ConfigError(f"{where}: of names {of!r}, which no earlier stage trains; {nearest(str(of), trained)}")
        model = trained[of].config.get("model") or {}
        config = merge(
            config, {"model": {"class_path": model.get("class_path")}, "ckpt_path": f"${{stages.{of}.best}}"}
        )
    elif "run" not in entry:
        raise ConfigError(f"{where} needs run ({', '.join(VERBS)}), or of and the name of the stage that it tests")
    return Stage(name, entry.get("run", "test"), reduce(merge, entry["layers"], config))


def _filled(config: dict[str, Any], where: str, earlier: list[str], base: dict[str, Any]) -> dict[str, Any]:
    """Configuration with references to values of the recipe filled in, those to the run kept as they are."""
    later = {"run_dir": r"\${run_dir}", "stages": {name: {"best": rf"\${{stages.{name}.best}}"} for name in earlier}}
    try:
        return _interpolated(config, {**later, "base": base})
    except OmegaConfBaseException as error:
        found = re.search(r"Interpolation (?:key|type) '?([\w.]+)", str(error))
        known = ["${run_dir}", *(f"${{stages.{name}.best}}" for name in earlier), "${base.KEY}"]
        name = f"${{{found.group(1)}}}" if found else " ".join(str(error).split())
        raise ConfigError(f"{where}: {name} cannot be filled in; here there are {', '.join(known)}") from error


def _interpolated(config: Any, values: dict[str, Any]) -> Any:
    return OmegaConf.to_container(OmegaConf.create({**values, "config": config}), resolve=True)["config"]  # type: ignore[call-overload, index]


def resolve(value: Any, run_dir: Path, best: dict[str, str]) -> Any:
    """Copy of a configuration with its references to the run and to earlier stages filled in.

    Raises:
        ConfigError: a stage that left no checkpoint.
    """
    stages = {name: {"best": path.replace("${", r"\${")} for name, path in best.items() if path}
    try:
        return _interpolated(value, {"run_dir": str(run_dir), "stages": stages})
    except OmegaConfBaseException as error:
        found = re.search(r"stages\.([\w-]+)\.best", str(error))
        if found is None:
            raise ConfigError(f"a reference cannot be filled in: {error}") from error
        raise ConfigError(
            f"${{{found.group()}}}: the stage {found.group(1)!r} left no checkpoint; is saving switched off?"
        ) from error


def override(recipe: Recipe, overrides: dict[str, Any]) -> None:
    """Set dotted keys in all stages that have them, or in one with ``stages.<name>.``; nothing is checked twice.

    ``model.width`` is short for ``model.init_args.width``. A key of the model or the data goes to the stages whose
    class has such an argument, or hands on the pairs of other data that has it.

    Raises:
        ConfigError: no stage has such a key; the nearest one that exists is named.
    """
    names = [stage.name for stage in recipe.stages]
    for key, value in overrides.items():
        parts = key.split(".")
        stages = recipe.stages
        if parts[0] == "stages":
            if len(parts) < 3 or parts[1] not in names:
                raise ConfigError(
                    f"--{key}: there is no such stage; {nearest(parts[1] if len(parts) > 1 else '', names)}"
                )
            stages, parts = [stage for stage in stages if stage.name == parts[1]], parts[2:]
        if parts[0] not in TOP:
            raise ConfigError(f"--{key}: {unknown_key(parts[0])}")
        if parts[0] not in ("model", "data") or len(parts) == 1:
            for stage in stages:
                set_key(stage.config, parts, value)
            continue
        name = parts[2] if parts[1] == "init_args" and len(parts) > 2 else parts[1]
        valid: set[str] = set()
        taken = False
        for stage in stages:
            for part in with_handed_on(stage.config.get(parts[0])):
                known = accepted_arguments(class_of(part["class_path"]))
                valid |= known or set()
                if known is None or name in known or name == "class_path":
                    set_key(part, parts[1:], value)
                    taken = True
                    break
        if not taken:
            raise ConfigError(f"--{key}: {parts[0]} has no argument {name!r}; {nearest(name, valid)}")
    for stage in recipe.stages:
        stage.config = normalised(stage.config)


def with_handed_on(part: Any) -> Iterator[dict[str, Any]]:
    """A class with its arguments, and behind it the data whose pairs it hands on, as `EveryPair` does."""
    while isinstance(part, dict) and "class_path" in part:
        yield part
        part = (part.get("init_args") or {}).get("data")


def check_recipe(recipe: Recipe) -> None:
    """Refuse unknown keys and values of the wrong type in any stage, before the first one starts.

    Raises:
        ConfigError: what is wrong and what was expected.
    """
    from lightning_idc.cli.training import check_config

    for stage in recipe.stages:
        check_config(stage.run, copied(stage.config), f"{recipe.path.name}, stage {stage.name}")
