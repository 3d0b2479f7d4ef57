"""The verb `recipes`, and where the recipes of this library lie; light, since a list is wanted at once."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from lightning_idc.utils.errors import ConfigError
from lightning_idc.utils.names import nearest


def shipped_folder() -> Path:
    """Folder of the recipes of this library: inside the package when installed, beside it in a checkout."""
    package = Path(__file__).resolve().parent.parent
    inside = package / "recipes"
    return inside if inside.is_dir() else package.parent / "recipes"


def shipped() -> dict[str, Path]:
    """Recipes that come with the library, by name."""
    folder = shipped_folder()
    found = {path.relative_to(folder): path for path in sorted(folder.rglob("*.yaml"))}
    return {name.with_suffix("").as_posix(): path for name, path in found.items() if name.parts[0] != "_base"}


def named(name: str) -> Path:
    """File of a recipe that comes with the library.

    Raises:
        ConfigError: there is none of this name; the nearest one.
    """
    known = shipped()
    wanted = name.removesuffix(".yaml").removeprefix("recipes/")
    if wanted not in known:
        raise ConfigError(f"no shipped recipe is called {name!r}; {nearest(wanted, known)}")
    return known[wanted]


def file_of(given: str) -> Path:
    """File of a recipe: a path, or the name of one that comes with the library.

    Raises:
        ConfigError: there is neither; the nearest name.
    """
    if Path(given).is_file():
        return Path(given)
    try:
        return named(given)
    except ConfigError as error:
        missing = Path(given).suffix in (".yaml", ".yml")
        raise ConfigError(f"there is no file {given!r}, and {error}" if missing else str(error)) from None


def run(given: list[str]) -> int:
    """The verb `recipes`."""
    verb, *arguments = given[1:] or ["ls"]
    if verb == "ls":
        return _list()
    if verb == "show" and len(arguments) == 1:
        print(named(arguments[0]).read_text(encoding="utf-8"), end="")
        return 0
    if verb == "cp" and len(arguments) in (1, 2):
        source = named(arguments[0])
        target = Path(arguments[1] if len(arguments) == 2 else ".")
        target = target / source.name if target.is_dir() else target
        if target.exists():
            raise ConfigError(f"{target} exists; name another file")
        if not target.parent.is_dir():
            raise ConfigError(f"there is no folder {str(target.parent)!r} to copy into")
        shutil.copyfile(source, target)
        print(target)
        return 0
    wanted = verb in ("-h", "--help")
    print("usage: lightning-idc recipes ls | show NAME | cp NAME [FILE]", file=sys.stdout if wanted else sys.stderr)
    return 0 if wanted else 2


def _list() -> int:
    import yaml

    # in C where PyYAML was built with it: these files are ours, and need none of the care that others do
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    recipes = {name: yaml.load(path.read_text(encoding="utf-8"), loader) for name, path in shipped().items()}
    width = max(map(len, recipes), default=0)
    for name, recipe in recipes.items():
        about = recipe.get("recipe") or {}
        print(f"{name:<{width}}  {about.get('title', '')} ({about.get('minutes', '?')} min)")
        for axis, entries in (recipe.get("matrix") or {}).items():
            print(f"{'':<{width}}    --matrix.{axis} {' | '.join(entries)}")
    return 0
