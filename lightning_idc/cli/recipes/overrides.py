"""Command-line overrides of a recipe: ``--KEY VALUE``, ``--data NAME`` and ``--engine NAME``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_idc.cli.data import data_modules
from lightning_idc.cli.recipes.classes import set_key, with_classes
from lightning_idc.cli.recipes.compose import Recipe, Stage
from lightning_idc.cli.signatures import TOP, arguments_of, check_config, unknown_key
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import full_name, is_public, nearest

_ENGINES = {"ray": "RayPool", "process": "InProcess", "array": "ArrayTask"}
_OF_ONE_DATA_SET = ("root", "annotations")


def override(recipe: Recipe, keys: Mapping[str, Any], replaced: str | None = None) -> None:
    """Set dotted keys in all stages that have them, or in one with ``stages.NAME.``.

    A key of the model or the data applies to stages whose class, or the wrapped data of its class, has the argument.

    Args:
        recipe: recipe, changed in place.
        keys: values by dotted key.
        replaced: class that :func:`use_data` has put in; the folder of its files is not that of the data of stages
            which keep theirs.

    Raises:
        ConfigError: no stage has the key.
    """
    for key, value in keys.items():
        stages, parts = _target(recipe, key)
        if parts[0] not in TOP:
            raise ConfigError(f"--{key}: {unknown_key(parts[0])}")
        if parts[0] in ("model", "data") and len(parts) > 1:
            _set_argument(stages, key, parts, value, replaced)
        else:
            for stage in stages:
                set_key(stage.options, parts, value)
    for stage in recipe.stages:
        stage.options = with_classes(stage.options, f"stage {stage.name}")


def _target(recipe: Recipe, key: str) -> tuple[list[Stage], list[str]]:
    """Stages that a key applies to, and its parts without ``stages.NAME``."""
    parts = key.split(".")
    if parts[0] != "stages":
        return recipe.stages, parts
    names = [stage.name for stage in recipe.stages]
    name = parts[1] if len(parts) > 1 else ""
    if len(parts) < 3 or name not in names:
        raise ConfigError(f"--{key}: there is no such stage; {nearest(name, names)}")
    return [stage for stage in recipe.stages if stage.name == name], parts[2:]


def _set_argument(stages: Sequence[Stage], key: str, parts: list[str], value: Any, replaced: str | None) -> None:
    """Set an argument of the model or the data in the stages whose class has it."""
    name = parts[2] if parts[1] == "init_args" and len(parts) > 2 else parts[1]
    only_replaced = replaced is not None and key.startswith("data.") and name in _OF_ONE_DATA_SET
    valid: set[str] = set()
    is_set = False
    for stage in stages:
        for part in _wrapped_data(stage.options.get(parts[0])):
            if only_replaced and part["class"] != replaced:
                continue
            argument_names = arguments_of(part["class"])
            valid |= argument_names or set()
            if argument_names is None or name in argument_names or name == "class":
                set_key(part, parts[1:], value)
                is_set = True
                break
    if not is_set:
        raise ConfigError(f"--{key}: {parts[0]} has no argument {name!r}; {nearest(name, valid)}")


def _wrapped_data(part: Any) -> Iterator[dict[str, Any]]:
    """A class with its arguments, and the data that it wraps, as in `EveryPair`."""
    while isinstance(part, dict) and "class" in part:
        yield part
        part = part.get("data")


def check_recipe(recipe: Recipe) -> None:
    """Check that all keys and classes of all stages exist.

    Raises:
        ConfigError: a key or class does not exist.
    """
    for stage in recipe.stages:
        check_config(stage.config, f"{recipe.path.name}, stage {stage.name}")


def smoke_keys(recipe: Recipe, keys: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of the smoke size, without those that replace the data if the command line has keys of the data.

    Args:
        recipe: recipe.
        keys: keys of the command line.
    """
    names_data = any(key.startswith("data.") for key in keys)
    return {
        key: value for key, value in (recipe.about.get("smoke") or {}).items() if not (key == "data" and names_data)
    }


def use_data(recipe: Recipe, name: str) -> str:
    """Replace the data of the last stage, in all stages with the same data.

    Folders, and arguments that the new data lacks, are dropped; the image size is the previous render size.
    Stages with other data, such as those that need a renderer or boxes, keep theirs.

    Args:
        recipe: recipe, changed in place; smoke keys that the new data lacks are dropped.
        name: name in ``lightning-idc list data``, or a class.

    Returns:
        Path of the class.

    Raises:
        ConfigError: there is no such data, or no stage of the recipe trains or tests on pairs.
    """
    modules = data_modules()
    if name not in modules and "." not in name and not is_public(name):
        raise ConfigError(f"--data {name}: there is no data of this name; {nearest(name, modules)}")
    if all(stage.run == "predict" for stage in recipe.stages):
        raise ConfigError(f"--data {name}: no stage of {recipe.path.name} trains or tests on pairs; leave --data out")
    path = full_name(modules.get(name, name))
    argument_names = arguments_of(path)
    tested = (recipe.stages[-1].options.get("data") or {}).get("class")
    for part in _all_data(recipe.stages):
        if part["class"] == tested != path:
            shared = {key: value for key, value in part.items() if argument_names is None or key in argument_names}
            if argument_names is not None and "image_size" in argument_names and "render_size" in part:
                shared.setdefault("image_size", part["render_size"])
            part.clear()
            part.update({"class": path} | {k: v for k, v in shared.items() if k not in _OF_ONE_DATA_SET})
    smoke = recipe.about.get("smoke") or {}
    recipe.about["smoke"] = {key: value for key, value in smoke.items() if _fits(recipe, key)}
    return path


def _fits(recipe: Recipe, key: str) -> bool:
    """Whether a smoke key is not an argument of data, or one that the data of a stage has."""
    stages, parts = _target(recipe, key)
    arguments = [part for part in parts[1:] if part not in ("init_args", "data")]
    if parts[0] != "data" or not arguments:
        return True
    names_by_part = [arguments_of(part["class"]) for part in _all_data(stages)]
    return any(names is None or arguments[0] in names for names in names_by_part)


def _all_data(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    return [part for stage in stages for part in _wrapped_data(stage.options.get("data"))]


def with_engine(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys with ``--engine`` converted to the launcher of data modules for synthesis.

    Raises:
        ConfigError: there is no such engine.
    """
    options = {key.removeprefix("engine."): value for key, value in keys.items() if key.startswith("engine.")}
    rest = {key: value for key, value in keys.items() if key.partition(".")[0] != "engine"}
    name = keys.get("engine")
    if name is None and not options:
        return rest
    if name not in _ENGINES:
        raise ConfigError(f"--engine is {name!r}; expected one of {', '.join(_ENGINES)}")
    return {**rest, "data.launcher": {"class": _ENGINES[name], **options}}
