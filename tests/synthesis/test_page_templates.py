"""Templates, packages and shared style sheets of web pages. Oracle: pages, archives and style sheets written here."""

from __future__ import annotations

import io
import json
import os
import re
import tarfile
from collections import Counter
from pathlib import Path

import pytest
import torch

from lightning_idc.synthesis import HtmlFolder, ReleasePairs
from lightning_idc.synthesis.records import Record
from lightning_idc.synthesis.run import run
from lightning_idc.synthesis.web.packages import unpack_packages
from lightning_idc.synthesis.web.shared_styles import shared_styles
from lightning_idc.synthesis.web.templates import STYLE_SHEETS, TEMPLATES, template_page
from lightning_idc.utils.errors import ConfigError, DataError


def sheet_of(page: str) -> str:
    return page.partition("<style>")[2].partition("</style>")[0]


@pytest.mark.slow
def test_kinds_share_no_style_sheet_and_pages_of_a_kind_do() -> None:
    sheets = {kind: {sheet_of(template_page(kind, number)) for number in range(2 * STYLE_SHEETS)} for kind in TEMPLATES}
    assert len(TEMPLATES) == 15 and all(len(of_kind) == STYLE_SHEETS for of_kind in sheets.values())
    assert len(set().union(*sheets.values())) == sum(map(len, sheets.values()))


@pytest.mark.parametrize("kind", TEMPLATES)
def test_pages_depend_on_kind_number_and_seed_alone(kind: str) -> None:
    page = template_page(kind, 3)
    assert page == template_page(kind, 3) != template_page(kind, 4)
    assert page != template_page(kind, 3, seed=1)
    assert not re.search(r"<script|src=|https?:|url\(", page), "no script, and no file besides the page"
    for tag in ("main", "div", "section", "a", "td", "label"):
        assert len(re.findall(rf"<{tag}[ >]", page)) == page.count(f"</{tag}>"), tag


def test_templates_are_sites_of_their_own() -> None:
    source = HtmlFolder(count=40, templates=["form", "news"], no_change=0.0)
    facts = [source.record(index).facts for index in range(40)]
    assert Counter(fact["site"] for fact in facts) == {"template-form": 20, "template-news": 20}
    assert all(fact["style"] == fact["site"] and "file" not in fact for fact in facts)
    assert len({fact["html"] for fact in facts}) == 40
    assert set(HtmlFolder(count=1, templates="all").sites) == {f"template-{kind}" for kind in TEMPLATES}
    assert source.fingerprint != HtmlFolder(count=40, templates=["form", "shop"], no_change=0.0).fingerprint
    with pytest.raises(ConfigError, match="templates is \\['blog'\\]; expected some of article"):
        HtmlFolder(templates=["blog"])


def test_sites_that_share_a_style_sheet_are_one_group(tmp_path: Path) -> None:
    sheets = {"a": ["one"], "b": ["one", "two"], "c": ["two"], "d": ["three"], "e": []}
    for site, names in sheets.items():
        (tmp_path / site).mkdir()
        links = "".join(f'<LINK href="{name}.css?v=1" rel=stylesheet>' for name in names)
        (tmp_path / site / "index.html").write_text(
            f"{links}<link rel=icon href=icon.png><link rel=stylesheet href=x.css>"
        )
        for name in names:
            (tmp_path / site / f"{name}.css").write_text(name)  # equal content under any path
    groups = shared_styles(tmp_path, {site: [f"{site}/index.html"] for site in sheets})
    assert groups == {"a": "a", "b": "a", "c": "a", "d": "d", "e": "e"}
    assert HtmlFolder(str(tmp_path), 5).record(2).facts["style"] == "a"


class Sites:
    """Source of one small record per site; sites a and b share a style sheet."""

    fingerprint = "sites"
    names = ("a", "b", "c", "d", "a", "c")

    def __len__(self) -> int:
        return len(self.names)

    def record(self, index: int) -> Record:
        site = self.names[index]
        record = Record(f"{index}", {"site": site, "style": "a" if site == "b" else site, "summary": "it moved"})
        for side in ("before", "after"):
            record.put(side, torch.zeros(3, 4, 4, dtype=torch.uint8))
        return record


def test_sites_are_released_in_the_splits_that_name_them(tmp_path: Path) -> None:
    splits = {"val": ["c"], "test": ["a", "b"]}
    run(ReleasePairs(str(tmp_path / "r"), together="site", shares=(1, 0, 0), splits=splits), Sites(), tmp_path / "s")
    rows = [json.loads(line) for line in (tmp_path / "r/pairs.jsonl").read_text().splitlines()]
    expected = ["test", "test", "val", "train", "test", "val"]
    assert [row["split"] for row in rows] == expected
    cases: list[tuple[dict[str, list[str]], type[Exception], str]] = [
        ({"test": ["b"]}, DataError, "sites that share a style sheet with a are in test and train"),
        ({"val": ["x"]}, DataError, "no pair is in the split val"),
        ({"tset": ["a"]}, ConfigError, "splits has tset; expected some of train, val, test"),
        ({"val": ["a"], "test": ["a"]}, ConfigError, "expected each value once"),
    ]
    for number, (wrong, error, match) in enumerate(cases):
        with pytest.raises(error, match=match):
            stage = ReleasePairs(str(tmp_path / "w"), together="site", shares=(1, 0, 0), splits=wrong)
            run(stage, Sites(), tmp_path / f"records{number}")


@pytest.fixture
def npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for npm that copies the archive at the returned path, and logs its calls."""
    archive, tools = tmp_path / "archive.tgz", tmp_path / "bin"
    tools.mkdir()
    (tools / "npm").write_text(f"#!/bin/sh\necho $* >> {tmp_path}/calls\ncp {archive} theme-1.0.tgz\n")
    (tools / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return archive


def write_archive(path: Path, name: str) -> None:
    with tarfile.open(path, "w:gz") as bundle:
        page = b"<p>Page of a package"
        info = tarfile.TarInfo(name)
        info.size = len(page)
        bundle.addfile(info, io.BytesIO(page))


def test_packages_are_unpacked_once(tmp_path: Path, npm: Path) -> None:
    write_archive(npm, "package/index.html")
    root = tmp_path / "set" / "usr" / "share" / "doc"
    for _ in range(2):
        source = HtmlFolder(str(root), 2, packages=["npm:@scope/theme=1.0"])
    assert source.record(0).facts["file"] == "@scope-theme/package/index.html"
    assert (tmp_path / "calls").read_text().splitlines() == ["pack @scope/theme@1.0 --silent --ignore-scripts"]


def test_malformed_packages_and_archives_are_named(tmp_path: Path, npm: Path) -> None:
    for name in ("theme", "npm:theme", "deb:sqlite3-doc=1; rm", "npm:--help=1"):
        with pytest.raises(ConfigError, match="expected deb:NAME=VERSION or npm:NAME=VERSION"):
            unpack_packages([name], tmp_path / "set")
    with pytest.raises(ConfigError, match="expected a folder FOLDER/usr/share/doc for packages"):
        HtmlFolder(str(tmp_path), packages=["npm:theme=1.0"])
    write_archive(npm, "../../../../../outside.html")
    with pytest.raises(DataError, match=r"'npm:theme=1\.0' cannot be unpacked"):
        unpack_packages(["npm:theme=1.0"], tmp_path / "set")
    assert not list(tmp_path.rglob("outside.html"))
    npm.unlink()
    with pytest.raises(DataError, match=r"'npm:theme=1\.0': npm failed: cp: "):
        unpack_packages(["npm:theme=1.0"], tmp_path / "set")
