"""Pages of the documentation site that are made and not written: READMEs, API reference, support matrix.

A hook of MkDocs (``hooks: [docs/pages.py]``). What stands in the repository once is not copied: READMEs become pages,
and links between files of the repository become links between pages, or plain text where the file has no page.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from lightning_idc.utils.lazy import public_names

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "lightning_idc"
MATRIX = ROOT / "docs" / "support.yaml"
_LINK = re.compile(r"\[([^\]\[]*)\]\(([^)\s#]*)(#[^)\s]*)?\)")
_SECTION = re.compile(r"(Args|Raises|Returns|Yields|Example|Examples|Attributes):")


def sources() -> dict[str, str]:
    """Files of the repository that are pages, and their addresses on the site."""
    found = {path.relative_to(ROOT).as_posix(): path.name for path in (ROOT / "docs").glob("*.md")}
    for folder in ("tasks", "notes"):
        paths = (ROOT / "docs" / folder).glob("*.md")
        found |= {path.relative_to(ROOT).as_posix(): f"{folder}/{path.name}" for path in paths}
    found |= {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
    found |= {"SECURITY.md": "security.md", "AGENTS.md": "agents.md"}
    for path in sorted(PACKAGE.rglob("README.md")):
        folders = path.parent.relative_to(PACKAGE).parts
        is_method = folders[0] in ("methods", "models")
        page = f"{'methods' if is_method else 'parts'}/{'_'.join(folders[is_method:])}.md"
        found[path.relative_to(ROOT).as_posix()] = page
    return found


# ---- links ----------------------------------------------------------------------------------------------


def with_links(markdown: str, source: str, pages: dict[str, str]) -> str:
    """Text of a file of the repository with links that hold on the site.

    Args:
        markdown: the text.
        source: path of the file in the repository.
        pages: address by path.
    """

    def replaced(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        wanted = os.path.normpath(os.path.join(os.path.dirname(source), target))
        wanted = f"{wanted}/README.md" if f"{wanted}/README.md" in pages else wanted
        if wanted in pages:
            return f"[{text}]({os.path.relpath(pages[wanted], os.path.dirname(pages[source]) or '.')}{anchor})"
        if wanted.startswith("docs/") and (ROOT / wanted).is_file():
            return f"[{text}]({os.path.relpath(wanted.removeprefix('docs/'), os.path.dirname(pages[source]) or '.')})"
        # a link to nothing stays, and the strict build names it
        return (
            (text if text.strip("`") in (target, wanted) else f"{text} (`{wanted}`)")
            if (ROOT / wanted).exists()
            else match[0]
        )

    parts = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


# ---- reference ------------------------------------------------------------------------------------------


def packages() -> dict[str, Path]:
    """Packages with public names, and their stubs."""
    stubs = sorted(PACKAGE.rglob("__init__.pyi"))
    return {".".join(stub.parent.relative_to(ROOT).parts): stub for stub in stubs}


def api_pages() -> dict[str, str]:
    """The reference: a page per package, a heading per public name."""
    found = {}
    for package, stub in packages().items():
        lines = [f"# {package}", ""]
        for name, (module, original) in sorted(public_names(stub).items()):
            lines += [*_entry(package, name, module, original), ""]
        found[f"api/{package}.md"] = "\n".join(lines)
    links = "\n".join(f"- [{package}]({package}.md)" for package in packages())
    found["api/index.md"] = f"# Reference\n\nPublic names; everything else may change.\n\n{links}\n"
    return found


def _entry(package: str, name: str, module: str, original: str) -> Iterator[str]:
    node, text = _defined(module, original)
    yield f"## {name}"
    yield ""
    yield f"```python\nfrom {package} import {name}\n\n{_signature(name, node)}\n```"
    yield ""
    yield from _described(text)


def _defined(module: str, name: str) -> tuple[ast.stmt | None, str]:
    """Where a name is defined, and its docstring."""
    path = ROOT.joinpath(*module.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for place, node in enumerate(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node, ast.get_docstring(node) or ""
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            after = body[place + 1] if place + 1 < len(body) else None
            told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
            return node, str(after.value.value) if told else ""  # type: ignore[union-attr]
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            return _defined(str(node.module), original)
    return None, ""


def _signature(name: str, node: ast.stmt | None) -> str:
    if isinstance(node, ast.FunctionDef):
        arguments, lead = node.args, 0
    elif isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        if init is None:
            fields = [ast.unparse(n) for n in node.body if isinstance(n, ast.AnnAssign)]
            return f"{name}({', '.join(fields)})"
        arguments, lead = init.args, 1
    else:
        return name if node is None else ast.unparse(node)[:200]
    shown = ast.arguments(
        posonlyargs=arguments.posonlyargs, args=arguments.args[lead:], vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs, kw_defaults=arguments.kw_defaults, kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )  # fmt: skip
    return f"{name}({ast.unparse(shown)})"


def _described(text: str) -> Iterator[str]:
    """A docstring as Markdown: sections become lists, examples become code."""
    section = None
    for line in text.splitlines():
        if heading := _SECTION.fullmatch(line):
            if section in ("Example", "Examples"):
                yield "```"
            section = heading[1]
            yield f"\n**{section}**\n"
            if section in ("Example", "Examples"):
                yield "```python"
        elif section in ("Example", "Examples"):
            yield line[4:] if line.startswith("    ") else line
        elif section in ("Args", "Raises", "Attributes") and re.match(r"    \S", line):
            name, colon, rest = line.strip().partition(": ")
            yield f"- `{name}`: {_plain(rest)}" if colon else f"- {_plain(name)}"
        elif section is None:
            yield _plain(line)
        else:
            yield f"  {_plain(line.strip())}" if line.strip() else ""
    if section in ("Example", "Examples"):
        yield "```"


def _plain(text: str) -> str:
    """Roles and double backticks of reStructuredText as Markdown; signs of HTML as text."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("[", "\\[")
        for part in re.split(r"(`[^`]*`)", text)
    )


# ---- support --------------------------------------------------------------------------------------------


def matrix() -> dict[str, dict[str, str]]:
    """Test behind each yes, by method and feature."""
    return yaml.safe_load(MATRIX.read_text(encoding="utf-8"))


def support_page() -> str:
    """What works together, as a table; below it the test behind each yes."""
    found = matrix()
    features = list(dict.fromkeys(feature for tests in found.values() for feature in tests))
    head = [
        *("---", "hide: [toc]", "---"),  # which leaves the table the width that it takes
        "# Support",
        "",
        "A yes has a test in the repository that fails without it; an empty cell was not tested.",
        "",
    ]
    # there are more features than methods, and a page is higher than wide
    table = [f"| | {' | '.join(found)} |", f"|---|{':---:|' * len(found)}"]
    table += [
        f"| {feature} | {' | '.join('yes' if feature in tests else '' for tests in found.values())} |"
        for feature in features
    ]
    lines = ["", "## The tests", ""]
    for method, tests in found.items():
        lines += [f"### {method}", "", *(f"- {feature}: `{test}`" for feature, test in tests.items()), ""]
    return "\n".join([*head, *table, *lines])


def generated() -> dict[str, str]:
    """All pages that do not lie in ``docs/``, by their address."""
    pages = sources()
    found = {
        page: with_links((ROOT / source).read_text(encoding="utf-8"), source, pages)
        for source, page in pages.items()
        if not source.startswith("docs/")
    }
    return found | api_pages() | {"support.md": support_page()}


# ---- MkDocs ---------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for address, markdown in generated().items():
        files.append(File.generated(config, address, content=markdown))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    source = f"docs/{page.file.src_uri}"
    return with_links(markdown, source, sources()) if (ROOT / source).is_file() else markdown
