"""lmms-eval: captioners of this library as its model ``lightning_idc``, and tasks of difference captioning.

Example:
    >>> from lightning_idc.serve.lmms_eval import TASKS
    >>> TASKS.name
    'tasks'
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

TASKS = Path(__file__).parent / "tasks"
"""Folder for ``--include_path``; ``python -m lightning_idc.serve.lmms_eval`` prints it."""


def manifest() -> Any:
    """Entry point of the group ``lmms_eval.models``."""
    from lmms_eval.models.registry_v2 import ModelManifest

    return ModelManifest("lightning_idc", simple_class_path=f"{__name__}.captioner.LmmsCaptioner")
