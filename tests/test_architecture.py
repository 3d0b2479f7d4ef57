"""The packages of the library form layers: imports go to lower layers only, and no files import each other in a cycle.

Cycles include imports under ``TYPE_CHECKING``; the layers ignore them.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from helpers.sources import PACKAGE, trees

# lowest layer first; packages of the same layer do not import each other
FLOORS = (
    ("utils",),
    ("metrics",),
    ("checkpoints", "images"),
    ("rules",),
    ("nn",),
    ("models",),
    ("data",),
    ("report",),
    ("synthesis",),
    ("methods",),
    ("callbacks",),
    ("serve",),
    ("cli",),
)
FLOOR = {package: floor for floor, packages in enumerate(FLOORS) for package in packages}
ALLOWED_FILES = {"__init__", "__main__"}


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path
    return found


MODULES = modules()


@cache
def imports_of(name: str, with_types: bool = False) -> frozenset[str]:
    """Return the modules of the library that a file imports, at its top or inside functions.

    Args:
        name: module that imports.
        with_types: include imports for type checkers.
    """
    tree, found = trees()[MODULES[name]], set()
    skipped = {
        id(inner)
        for node in ast.walk(tree)
        if not with_types and isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        named: list[str] = []
        if isinstance(node, ast.Import):
            named = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [f"{node.module}.{alias.name}" for alias in node.names]
        for target in named:
            while target and target not in MODULES:
                target = target.rpartition(".")[0]
            if target and target != name and MODULES[target].name != "__init__.py":
                found.add(target)
    return frozenset(found)


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_import_points_down() -> None:
    up = [
        f"{name} -> {target}"
        for name in MODULES
        for target in imports_of(name)
        if room(name) in FLOOR
        and room(target) in FLOOR
        and room(name) != room(target)
        and FLOOR[room(name)] <= FLOOR[room(target)]
    ]
    assert not up, "\n".join(sorted(up))


def test_no_two_files_import_each_other_in_a_circle() -> None:
    left = {name: imports_of(name, with_types=True) for name in MODULES}
    while free := [name for name, targets in left.items() if not targets & left.keys()]:
        for name in free:
            del left[name]
    # the remaining files are in a cycle or lead into one
    inside = [name for name in left if any(name in left[other] for other in left)]
    assert not inside, "these files are in or lead into a circle: " + ", ".join(sorted(inside))


def test_model_families_know_no_method() -> None:
    families = (
        "lightning_idc.models.pair_transformer",
        "lightning_idc.models.pretraining",
        "lightning_idc.models.vlm",
    )
    above = [
        f"{name} -> {target}"
        for name in MODULES
        if name.startswith(families)
        for target in imports_of(name, with_types=True)
        if room(target) in ("methods", "callbacks", "serve", "cli") and not target.startswith(families)
    ]
    assert not above, "\n".join(sorted(above))


def test_there_are_few_rooms_and_each_has_a_floor() -> None:
    packages = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    files = {path.stem for path in PACKAGE.glob("*.py")}
    assert len(packages) <= 14
    assert packages <= FLOOR.keys() and files <= ALLOWED_FILES


def test_rooms_that_need_no_lightning_do_not_import_it() -> None:
    light = [
        name
        for name, path in MODULES.items()
        if room(name) in ("metrics", "nn")
        and any(line.startswith(("import lightning.", "from lightning.")) for line in path.read_text().splitlines())
    ]
    assert not light


def test_the_rules_import_no_torch() -> None:
    """The rules must answer before torch is loaded, so they depend on utils and images only."""
    lines = [line.strip() for name, path in MODULES.items() if room(name) == "rules"
             for line in path.read_text(encoding="utf-8").splitlines()]  # fmt: skip
    assert not [line for line in lines if line.startswith(("import torch", "from torch", "import lightning."))]
    targets = {room(target) for name in MODULES if room(name) == "rules" for target in imports_of(name)}
    assert targets == {"rules", "images", "utils"}


def test_the_ground_floor_is_typed_without_exceptions() -> None:
    strict = [path for name, path in MODULES.items() if room(name) in ("utils", "checkpoints", "images", "rules")]
    assert len(strict) > 20
    assert [path.name for path in strict if "type: ignore" in path.read_text(encoding="utf-8")] == []


def test_protocols_asked_at_runtime_name_nothing_that_a_module_keeps_aside() -> None:
    """From Python 3.12 on, ``isinstance`` misses submodules and parameters, which ``nn.Module`` stores separately."""
    found = []
    for tree in trees().values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and "runtime_checkable" in {ast.unparse(d) for d in node.decorator_list}:
                members = [part for part in node.body if isinstance(part, ast.AnnAssign)]
                kept = ("Any", "Module", "Tensor", "Parameter")
                found += [
                    f"{node.name}.{ast.unparse(m.target)}" for m in members if ast.unparse(m.annotation).endswith(kept)
                ]
    assert not found, f"methods and properties are seen, these are not: {found}"
