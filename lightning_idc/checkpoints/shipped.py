"""Captioners that come with the library; imports no torch, since the help of a command lists them."""

from __future__ import annotations

from pathlib import Path

from lightning_idc.utils.plugins import plugin_folders

SHIPPED = Path(__file__).resolve().parents[1] / "serve" / "models"
"""Folder with one folder per captioner."""
DEFAULT = "clevr"


def shipped_models() -> dict[str, Path]:
    """Folders of the captioners of the library, the default first, and then of installed plug-ins, by name."""
    folders = sorted(
        (path.parent for path in SHIPPED.glob("*/config.json")), key=lambda path: (path.name != DEFAULT, path)
    )
    added = [path.parent for folder in plugin_folders("MODELS") for path in sorted(folder.glob("*/config.json"))]
    models: dict[str, Path] = {}
    for folder in [*folders, *added]:
        models.setdefault(folder.name, folder)
    return models
