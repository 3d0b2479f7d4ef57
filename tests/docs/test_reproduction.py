"""docs/reproduction.md has a row for every table and figure of the five papers, and what it names is there."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from pathlib import Path

import pytest

import lightning_idc.callbacks
from lightning_idc.cli import VERBS
from lightning_idc.cli.recipe import axes

ROOT = Path(__file__).parents[2]
NUMBERS = {
    "ADPO": (range(1, 5), range(1, 6)),
    "Img-Diff": (range(1, 21), range(1, 11)),
    "M3Diff": (range(1, 14), range(1, 7)),
    "NAMC": (range(1, 15), range(1, 11)),
    "ProCap": (range(1, 17), range(1, 15)),
}
"""Tables and figures of each paper, those that only their numbers betray in its text as well."""
ROW = re.compile(r"^\| (?P<item>[\w-]+ (?:Table|Figure) \d+) \| [^|]+ \| (?P<how>[^|]+) \|$")
ROWS = [
    (match["item"], match["how"])
    for line in (ROOT / "docs" / "reproduction.md").read_text(encoding="utf-8").splitlines()
    if (match := ROW.match(line))
]


def test_every_table_and_figure_has_a_row() -> None:
    expected = [
        f"{paper} {kind} {number}"
        for paper, both in NUMBERS.items()
        for kind, numbers in zip(("Table", "Figure"), both, strict=True)
        for number in numbers
    ]
    assert sorted(item for item, _ in ROWS) == sorted(expected)


@pytest.mark.parametrize(("item", "how"), ROWS, ids=[item for item, _ in ROWS])
def test_what_a_row_names_is_there(item: str, how: str) -> None:
    named = re.findall(r"`(recipes/[\w/]+\.yaml)`(?: `(\w+)=([\w*]+)`)?", how)
    for recipe, axis, entry in named:
        found = axes(ROOT / recipe)
        assert not axis or any(fnmatch(name, entry) for name in found[axis]), f"{recipe} has no {axis}={entry}"
    scripts = re.findall(r"`(benchmarks/\w+\.py)`", how)
    assert all((ROOT / script).is_file() for script in scripts)
    verbs = re.findall(r"`lightning-idc ([\w-]+)`", how)
    assert all(verb in VERBS for verb in verbs)
    callbacks = re.findall(r"callback `(\w+)`", how)
    assert all(name in dir(lightning_idc.callbacks) for name in callbacks)
    reason = re.search(r"not possible here, because \w+", how)
    assert named or scripts or verbs or callbacks or reason, "a recipe, a command, a script or the reason why not"


def test_every_ablation_belongs_to_a_row() -> None:
    text = " ".join(how for _, how in ROWS)
    for recipe in ("procap_ablations", "namc_ablations"):
        globs = re.findall(rf"`recipes/paper/{recipe}\.yaml` `ablation=([\w*]+)`", text)
        for name in axes(ROOT / "recipes" / "paper" / f"{recipe}.yaml")["ablation"]:
            assert any(fnmatch(name, glob) for glob in globs), f"{recipe}: {name} is of no table"
