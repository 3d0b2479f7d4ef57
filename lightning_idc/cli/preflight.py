"""Recipes with pretrained models in a pipeline are checked as a whole before their first stage."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from lightning_idc.cli.recipe import Recipe
from lightning_idc.utils.errors import ConfigError

_DATA = "Records"
_MODELS = {
    "BlipMatcher", "ChatModel", "ChatVisionModel", "ClipImages", "ClipTexts", "DiffusionInpainter", "DinoImages",
    "EndpointText", "EndpointVision", "FastSamSegmenter", "PromptToPrompt", "SamSegmenter",
}  # fmt: skip
"""Classes that read weights or ask an endpoint; recipes without any are not delayed."""


def check_models(recipe: Recipe, folder: Path) -> None:
    """Find what would stop a pipeline of the recipe after hours: packages, weights, templates, disk, memory.

    Args:
        recipe: with all keys of the command line.
        folder: where the run will lie.

    Raises:
        ConfigError: there is something.
    """
    steps = [
        {"name": stage.name, **{key: stage.config.get(key) for key in ("model", "data", "trainer")}}
        for stage in recipe.stages
        if stage.run == "predict" and _name((stage.config.get("data") or {}).get("class_path")) == _DATA
    ]
    if not any(_name(path) in _MODELS for step in steps for path in _class_paths(step)):
        return
    with tempfile.TemporaryDirectory() as home:
        file = Path(home) / "steps.json"
        file.write_text(json.dumps({"steps": steps, "folder": str(folder)}), encoding="utf-8")
        # a process of its own: this one must not have used torch when it forks its stages
        command = [sys.executable, "-m", "lightning_idc.synthesis.preflight", str(file)]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        problems = "\n".join(f"  {line}" for line in done.stdout.splitlines() if line) or "  the check itself failed"
        raise ConfigError(f"{recipe.path.name} cannot run here, nothing was started:\n{problems}")


def _name(class_path: Any) -> str:
    return str(class_path).rpartition(".")[2]


def _class_paths(value: Any) -> list[str]:
    if isinstance(value, dict):
        own = [value["class_path"]] if isinstance(value.get("class_path"), str) else []
        return own + [path for item in value.values() for path in _class_paths(item)]
    return [path for item in value for path in _class_paths(item)] if isinstance(value, list) else []
