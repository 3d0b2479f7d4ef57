"""Keys of the command line over a recipe: ``--KEY VALUE``, ``--data NAME`` and ``--engine NAME``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lightning_idc.cli.data import MODULES
from lightning_idc.cli.recipes.classes import set_key, with_classes
from lightning_idc.cli.recipes.compose import Recipe, Stage
from lightning_idc.cli.signatures import TOP, arguments_of, check_config, unknown_key
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import full_name, is_public, nearest

_ENGINES = {"ray": "RayPool", "process": "InProcess", "array": "ArrayTask"}
_OF_ONE_DATA_SET = ("root", "annotations")


def override(recipe: Recipe, keys: Mapping[str, Any]) -> None:
    """Set dotted keys in all stages that have them, or in one with ``stages.NAME.``.

    A key of the model or the data goes to the stages whose class has such an argument, or hands on the pairs of other
    data that has it.

    Args:
        recipe: changed in place.
        keys: dotted key -> value.

    Raises:
        ConfigError: no stage has such a key; the nearest one that exists.
    """
    for key, value in keys.items():
        stages, parts = _target(recipe, key)
        if parts[0] not in TOP:
            raise ConfigError(f"--{key}: {unknown_key(parts[0])}")
        if parts[0] in ("model", "data") and len(parts) > 1:
            _set_argument(stages, key, parts, value)
        else:
            for stage in stages:
                set_key(stage.options, parts, value)
    for stage in recipe.stages:
        stage.options = with_classes(stage.options, f"stage {stage.name}")


def _target(recipe: Recipe, key: str) -> tuple[list[Stage], list[str]]:
    """Stages that a key is for, and its parts behind their name."""
    parts = key.split(".")
    if parts[0] != "stages":
        return recipe.stages, parts
    names = [stage.name for stage in recipe.stages]
    name = parts[1] if len(parts) > 1 else ""
    if len(parts) < 3 or name not in names:
        raise ConfigError(f"--{key}: there is no such stage; {nearest(name, names)}")
    return [stage for stage in recipe.stages if stage.name == name], parts[2:]


def _set_argument(stages: Sequence[Stage], key: str, parts: list[str], value: Any) -> None:
    """Set an argument of the model or the data in the stages whose class has it."""
    name = parts[2] if parts[1] == "init_args" and len(parts) > 2 else parts[1]
    valid: set[str] = set()
    is_set = False
    for stage in stages:
        for part in _handed_on(stage.options.get(parts[0])):
            known = arguments_of(part["class"])
            valid |= known or set()
            if known is None or name in known or name == "class":
                set_key(part, parts[1:], value)
                is_set = True
                break
    if not is_set:
        raise ConfigError(f"--{key}: {parts[0]} has no argument {name!r}; {nearest(name, valid)}")


def _handed_on(part: Any) -> Iterator[dict[str, Any]]:
    """A class with its arguments, and behind it the data whose pairs it hands on, as `EveryPair` does."""
    while isinstance(part, dict) and "class" in part:
        yield part
        part = part.get("data")


def check_recipe(recipe: Recipe) -> None:
    """Refuse unknown keys and classes in any stage.

    Raises:
        ConfigError: the stage, the key, and the nearest one that exists.
    """
    for stage in recipe.stages:
        check_config(stage.config, f"{recipe.path.name}, stage {stage.name}")


def use_data(recipe: Recipe, name: str) -> None:
    """Let all stages that take the pairs of the last stage take others.

    Arguments that the other data has, too, are kept, but for the folder; images come in the size that was rendered
    before. A stage that learns from what only a renderer or boxes can tell keeps its data.

    Args:
        recipe: changed in place; keys of its smoke size that only the former data have are dropped.
        name: as ``lightning-idc list data`` lists them, or a class.

    Raises:
        ConfigError: there is no such data.
    """
    if name not in MODULES and "." not in name and not is_public(name):
        raise ConfigError(f"--data {name}: there is no data of this name; {nearest(name, MODULES)}")
    path = full_name(MODULES.get(name, name))
    known = arguments_of(path)
    tested = (recipe.stages[-1].options.get("data") or {}).get("class")
    for part in _all_data(recipe.stages):
        if part["class"] == tested != path:
            shared = {key: value for key, value in part.items() if known is None or key in known}
            if known is not None and "image_size" in known and "render_size" in part:
                shared.setdefault("image_size", part["render_size"])
            part.clear()
            part.update({"class": path} | {k: v for k, v in shared.items() if k not in _OF_ONE_DATA_SET})
    smoke = recipe.about.get("smoke") or {}
    recipe.about["smoke"] = {key: value for key, value in smoke.items() if _fits(recipe, key)}


def _fits(recipe: Recipe, key: str) -> bool:
    """Whether a key of the smoke size is not an argument of data, or of some that a stage takes."""
    stages, parts = _target(recipe, key)
    arguments = [part for part in parts[1:] if part not in ("init_args", "data")]
    if parts[0] != "data" or not arguments:
        return True
    known = [arguments_of(part["class"]) for part in _all_data(stages)]
    return any(names is None or arguments[0] in names for names in known)


def _all_data(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    return [part for stage in stages for part in _handed_on(stage.options.get("data"))]


def with_engine(keys: dict[str, Any]) -> dict[str, Any]:
    """Keys with ``--engine`` as the launcher that the data modules of data making take.

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
