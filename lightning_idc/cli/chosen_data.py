"""``run RECIPE --data NAME``: any recipe on other pairs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lightning_idc.cli.data import MODULES
from lightning_idc.cli.recipe import Recipe, Stage, with_handed_on
from lightning_idc.utils.arguments import accepted_arguments
from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import class_of, is_public, nearest, with_full_names

_OF_ONE_DATA_SET = ("root", "annotations")


def use_data(recipe: Recipe, name: str) -> None:
    """Let all stages that take the pairs which are tested take others.

    Arguments that the other data has, too, are kept, but for the folder; images come in the size that was rendered
    before. A stage that learns from what only a renderer or boxes can tell keeps its data.

    Args:
        recipe: changed in place.
        name: as ``lightning-idc data ls`` lists them, or a class.

    Raises:
        ConfigError: there is no such data.
    """
    if name not in MODULES and "." not in name and not is_public(name):
        raise ConfigError(f"--data {name}: there is no data of this name; {nearest(name, MODULES)}")
    path = with_full_names({"class_path": MODULES.get(name, name)})["class_path"]
    known = accepted_arguments(class_of(path))
    tested = (recipe.stages[-1].config.get("data") or {}).get("class_path")
    for old in _all_data(recipe.stages):
        if old["class_path"] == tested != path:
            given: dict[str, Any] = old.get("init_args") or {}
            kept = {key: value for key, value in given.items() if known is None or key in known}
            if known is not None and "image_size" in known and "render_size" in given:
                kept.setdefault("image_size", given["render_size"])
            kept = {key: value for key, value in kept.items() if key not in _OF_ONE_DATA_SET}
            old.update(class_path=path, init_args=kept)
    smoke = recipe.about.get("smoke") or {}
    recipe.about["smoke"] = {key: value for key, value in smoke.items() if _fits(recipe, key)}


def _fits(recipe: Recipe, key: str) -> bool:
    """Whether a key of the smoke size is not an argument of data, or of some that a stage takes."""
    parts, stages = key.split("."), recipe.stages
    if parts[0] == "stages" and len(parts) > 2:
        stages, parts = [stage for stage in stages if stage.name == parts[1]], parts[2:]
    arguments = [part for part in parts[1:] if part not in ("init_args", "data")]
    if parts[0] != "data" or not arguments:
        return True
    kinds = [accepted_arguments(class_of(data["class_path"])) for data in _all_data(stages)]
    return any(known is None or arguments[0] in known for known in kinds)


def _all_data(stages: Sequence[Stage]) -> list[dict[str, Any]]:
    """Data of stages, and what some of it hands on the pairs of."""
    return [data for stage in stages for data in with_handed_on(stage.config.get("data"))]
