"""Captioners that come with the library. Needs no torch, since a command's help lists them."""

from __future__ import annotations

from pathlib import Path

SHIPPED = Path(__file__).resolve().parents[1] / "serve" / "models"
"""Folder with one folder per captioner."""
DEFAULT = "clevr"


def shipped_models() -> dict[str, Path]:
    """Folders of the captioners that come with the library, by name, the default first."""
    folders = sorted(
        (path.parent for path in SHIPPED.glob("*/config.json")), key=lambda path: (path.name != DEFAULT, path)
    )
    return {path.name: path for path in folders}
