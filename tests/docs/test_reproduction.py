"""Recipes, scripts, commands and callbacks in docs/notes/reproduction.md exist."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import lightning_idc.callbacks
from lightning_idc.cli import VERBS
from lightning_idc.cli.recipes.compose import axes

ROOT = Path(__file__).parents[2]
ROW = re.compile(r"^\| (?P<item>[\w-]+ (?:Table|Figure) \d+) \| [^|]+ \| (?P<how>[^|]+) \|$")
ROWS = [
    (match["item"], match["how"])
    for line in (ROOT / "docs" / "notes" / "reproduction.md").read_text(encoding="utf-8").splitlines()
    if (match := ROW.match(line))
]


def test_what_a_row_names_is_there() -> None:
    assert len(ROWS) > 100
    for item, how in ROWS:
        check_row(item, how)


def check_row(item: str, how: str) -> None:
    named = re.findall(r"`(recipes/[\w/]+\.yaml)`(?: `(\w+)=([\w*]+)`)?", how)
    for recipe, axis, entry in named:
        result = axes(ROOT / recipe)
        assert not axis or any(fnmatch(name, entry) for name in result[axis]), f"{recipe} has no {axis}={entry}"
    scripts = re.findall(r"`(benchmarks/[\w/]+\.py)`", how)
    assert all((ROOT / script).is_file() for script in scripts)
    verbs = re.findall(r"`lightning-idc ([\w-]+)[^`]*`", how)
    assert all(verb in VERBS for verb in verbs)
    callbacks = re.findall(r"callback `(\w+)`", how)
    assert all(name in dir(lightning_idc.callbacks) for name in callbacks)
    reason = re.search(r"not possible here, because \w+", how)
    assert named or scripts or verbs or callbacks or reason, (
        f"{item}: expected a recipe, a command, a script or a reason"
    )
