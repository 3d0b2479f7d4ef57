"""Checks of recipes with pretrained models in a pipeline, before the first stage."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lightning_idc.cli.recipes.compose import Recipe
from lightning_idc.utils.errors import ConfigError

_DATA = "lightning_idc.synthesis.Records"
_MODELS = {
    "BlipMatcher", "ChatModel", "ChatVisionModel", "ClipImages", "ClipTexts", "DiffusionInpainter", "DinoImages",
    "EndpointText", "EndpointVision", "FastSamSegmenter", "PromptToPrompt", "SamSegmenter",
    "SentenceEncoder",
}  # fmt: skip
"""Classes that load weights or call an endpoint; other recipes are not checked, to save time."""


def check_models(recipe: Recipe, folder: Path) -> None:
    """Check packages, weights, templates, disk and memory, which would stop a pipeline only after hours.

    Args:
        recipe: recipe with all keys of the command line.
        folder: folder of the run.

    Raises:
        ConfigError: there are problems; the message has all of them.
    """
    steps = [
        {"name": stage.name, **{key: stage.config.get(key) for key in ("model", "data", "trainer")}}
        for stage in recipe.stages
        if stage.run == "predict" and (stage.config.get("data") or {}).get("class_path") == _DATA
    ]
    if _MODELS.isdisjoint(path.rpartition(".")[2] for step in steps for path in _class_paths(step)):
        return
    from lightning_idc.synthesis.preflight import preflight

    if problems := preflight(steps, folder):
        raise ConfigError(f"{recipe.path.name} cannot run here, nothing was started: {'; '.join(problems)}")


def _class_paths(value: Any) -> Iterator[str]:
    """Paths of all classes in a configuration."""
    if isinstance(value, dict):
        if isinstance(value.get("class_path"), str):
            yield value["class_path"]
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _class_paths(item)
