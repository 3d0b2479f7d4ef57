"""Paths of the shipped recipes."""

from __future__ import annotations

from pathlib import Path

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import nearest
from lightning_idc.utils.plugins import plugin_folders


def shipped_folder() -> Path:
    """Folder of the shipped recipes: in the package when installed, next to it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def shipped() -> dict[str, Path]:
    """Files of the recipes of the library and of installed plug-ins, by name."""
    folders = [*plugin_folders("RECIPES"), shipped_folder()]
    paths = {path.relative_to(folder): path for folder in folders for path in sorted(folder.rglob("*.yaml"))}
    return {name.with_suffix("").as_posix(): path for name, path in paths.items() if name.parts[0] != "_base"}


def named(name: str) -> Path:
    """File of a shipped recipe.

    Raises:
        ConfigError: there is no recipe of this name.
    """
    recipes = shipped()
    short = name.removesuffix(".yaml").removeprefix("recipes/")
    if short not in recipes:
        raise ConfigError(f"no shipped recipe is called {name!r}; {nearest(short, recipes)}")
    return recipes[short]


def file_of(name: str) -> Path:
    """File of a recipe by path or by the name of a shipped recipe.

    Raises:
        ConfigError: there is neither a file nor a recipe of this name.
    """
    if Path(name).is_file():
        return Path(name)
    try:
        return named(name)
    except ConfigError as error:
        missing = Path(name).suffix in (".yaml", ".yml")
        raise ConfigError(f"there is no file {name!r}, and {error}" if missing else str(error)) from None
