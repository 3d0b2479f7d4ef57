"""The documentation is up to date: code runs, names and links exist, and every yes of the matrix has a test."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from helpers.own_pairs import own_pairs

from lightning_idc.cli import CONFIG_VERBS, VERBS, main
from lightning_idc.cli.recipes.shipped import shipped

ROOT = Path(__file__).resolve().parents[2]


@cache
def site() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pages", ROOT / "docs" / "pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def written() -> dict[str, str]:
    """Return the text of every file of the repository that becomes a page, by path."""
    return {source: (ROOT / source).read_text(encoding="utf-8") for source in site().sources()}


def blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_the_reference_lists_all_public_names_with_what_they_are() -> None:
    pages = site().api_pages()
    for package in site().packages():
        text = pages[f"api/{package}.md"]
        names = re.findall(r"^## (\w+)$", text, re.MULTILINE)
        assert names == sorted(set(importlib.import_module(package).__all__) - {"__version__"}), package
        entries = re.split(r"^## \w+$", text, flags=re.MULTILINE)[1:]
        silent = [name for name, entry in zip(names, entries, strict=True) if not entry.split("```")[2].strip()]
        assert not silent, f"{package}: no docstring was found for {silent}"


SHORTER = {
    "max_epochs=40": "max_epochs=1, accelerator='cpu', enable_progress_bar=False",
    "image_size=128": "image_size=32",
}
"""Replacements that make the code of README faster."""


@pytest.mark.slow
def test_code_of_readme_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    own_pairs(tmp_path / "my_pairs", 30)
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    code = blocks(text, "python")
    assert all(any(long in block for block in code) for long in SHORTER)
    for block in code:
        for long, short in SHORTER.items():
            block = block.replace(long, short)
        exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    assert set(re.findall(r"^```(\w+)", text, re.MULTILINE)) == {"bash", "console", "python"}, "all kinds are tested"


@pytest.mark.slow
def test_each_yes_of_the_support_matrix_names_a_test_that_is_there() -> None:
    for method, tests in site().matrix().items():
        for feature, named in tests.items():
            file, _, test = named.partition("::")
            assert (ROOT / file).is_file(), f"{method}, {feature}: {file}"
            known = {n.name for n in ast.parse((ROOT / file).read_text("utf-8")).body if isinstance(n, ast.FunctionDef)}
            assert test in known, f"{method}, {feature}: {named}"
    page = site().support_page()
    assert page.count(" yes |") == sum(map(len, site().matrix().values()))


def test_commands_of_the_documentation_are_there() -> None:
    """Checks verbs, make targets and recipes; their arguments are tested elsewhere."""
    recipes = set(shipped())
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    seen = 0
    for source, text in written().items():
        for line in "".join(blocks(text, "bash")).splitlines():
            words = line.split("#")[0].split()
            seen += bool(words)
            if words[:1] == ["make"]:
                assert not set(words[1:]) - targets, f"{source}: {line}"
            elif words[:1] == ["lightning-idc"]:
                assert words[1] in VERBS, f"{source}: {line}"
            if words[:2] in (["lightning-idc", "run"], ["lightning", "run"], ["lightning-idc", "plan"]):
                name = words[2].removeprefix("recipes/").removesuffix(".yaml")
                assert name in recipes or name == "RECIPE", f"{source}: {line}"
    assert seen > 40


def test_options_of_the_documentation_are_those_of_their_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    """Only for verbs with fixed options; keys of configurations are tested elsewhere."""
    everywhere, seen = {"--import", "--traceback"}, 0
    for source, text in written().items():
        for line in "".join(blocks(text, "bash")).splitlines():
            command, *words = line.split("#")[0].split() or [""]
            if command != "lightning-idc" or words[0] in CONFIG_VERBS:
                continue
            main([*words[: 1 + (words[0] == "data")], "--help"])
            known = capsys.readouterr().out
            options = {word.partition("=")[0] for word in words if word.startswith("--")} - everywhere
            unknown = [option for option in options if option not in known]
            assert not unknown or "--key value" in known, f"{source}: {line}"
            seen += len(options)
    assert seen > 20


def test_every_page_can_be_reached_from_the_navigation() -> None:
    """Every method, task and shipped captioner has a page, and the navigation contains all pages except notes."""
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]

    def places(entry: object) -> set[str]:
        if isinstance(entry, str):
            return {entry}
        return set().union(*map(places, entry.values() if isinstance(entry, dict) else entry))  # type: ignore[call-overload]

    pages = {page for page in site().sources().values() if not page.startswith("notes/")}
    assert places(nav) == {*pages, "support.md", "api/index.md"}
    assert {f"methods/{path.parent.name}.md" for path in ROOT.glob("lightning_idc/methods/*/README.md")} <= places(nav)


def test_links_between_files_lead_somewhere() -> None:
    """Checks links within the repository; links of the site are checked when it is built."""
    seen = 0
    for source, text in written().items():
        for target in re.findall(r"\]\(([^)\s#]+)(?:#[^)\s]*)?\)", text):
            if "://" not in target and not target.startswith("mailto:"):
                assert (ROOT / source).parent.joinpath(target).exists(), f"{source}: {target}"
                seen += 1
    assert seen > 40, "links are not recognised"


def test_files_that_pages_name_are_there() -> None:
    """Checks paths in the text, and the first column of tables of files."""
    seen = 0
    for source, text in written().items():
        homes = (ROOT, (ROOT / source).parent, ROOT / "lightning_idc")
        cells = re.findall(r"^\| (`[\w/.]+\.py`(?:, `[\w/.]+\.py`)*) \|", text, re.MULTILINE)
        named = {name for cell in cells for name in re.findall(r"`([^`]+)`", cell)}
        named |= set(re.findall(r"`((?:[\w.]+/)+\w+\.py)`", text))
        lost = [name for name in sorted(named) if not any((home / name).is_file() for home in homes)]
        assert not lost or source == "CHANGELOG.md", f"{source}: there is no file {', '.join(lost)}"
        seen += len(named)
    assert seen > 40, "paths are not recognised"


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_MKDOCS_2_WARNING", "true")  # the theme also sets it
    pytest.importorskip("material", reason="needs the extra docs")
    from mkdocs.commands.build import build
    from mkdocs.config import load_config

    build(load_config(str(ROOT / "mkdocs.yml"), site_dir=str(tmp_path / "site"), strict=True))
    start = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert 'href="methods/adpo/"' in start, "links of README lead to pages"
    reference = (tmp_path / "site" / "api" / "lightning_idc.methods" / "index.html").read_text(encoding="utf-8")
    assert 'id="procap"' in reference and "<strong>Args</strong>" in reference
