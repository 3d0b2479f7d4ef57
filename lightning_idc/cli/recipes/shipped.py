"""Where the recipes of this library lie."""

from __future__ import annotations

from pathlib import Path

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import nearest


def shipped_folder() -> Path:
    """Folder of the recipes of this library: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def shipped() -> dict[str, Path]:
    """Recipes that come with the library, by name."""
    folder = shipped_folder()
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*.yaml"))}
    return {name.with_suffix("").as_posix(): path for name, path in paths.items() if name.parts[0] != "_base"}


def named(name: str) -> Path:
    """File of a recipe that comes with the library.

    Raises:
        ConfigError: there is none of this name; the nearest one.
    """
    known = shipped()
    short = name.removesuffix(".yaml").removeprefix("recipes/")
    if short not in known:
        raise ConfigError(f"no shipped recipe is called {name!r}; {nearest(short, known)}")
    return known[short]


def file_of(name: str) -> Path:
    """File of a recipe: a path, or the name of one that comes with the library.

    Raises:
        ConfigError: there is neither; the nearest name.
    """
    if Path(name).is_file():
        return Path(name)
    try:
        return named(name)
    except ConfigError as error:
        missing = Path(name).suffix in (".yaml", ".yml")
        raise ConfigError(f"there is no file {name!r}, and {error}" if missing else str(error)) from None
