"""Generated pages of the documentation site: READMEs, API reference, support matrix.

This file is a hook of MkDocs (``hooks: [docs/pages.py]``). The READMEs of the repository become pages of the site, and
links between files become links between pages, or plain text if a file has no page.
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
    """Return the files of the repository that become pages, with their addresses on the site."""
    addresses = {path.relative_to(ROOT).as_posix(): path.name for path in (ROOT / "docs").glob("*.md")}
    for folder in ("tasks", "notes"):
        paths = (ROOT / "docs" / folder).glob("*.md")
        addresses |= {path.relative_to(ROOT).as_posix(): f"{folder}/{path.name}" for path in paths}
    addresses |= {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
    addresses |= {"SECURITY.md": "security.md", "AGENTS.md": "agents.md"}
    for path in sorted(PACKAGE.rglob("README.md")):
        folders = path.parent.relative_to(PACKAGE).parts
        is_method = folders[0] in ("methods", "models")
        page = f"{'methods' if is_method else 'parts'}/{'_'.join(folders[is_method:])}.md"
        addresses[path.relative_to(ROOT).as_posix()] = page
    return addresses


# ---- links ----------------------------------------------------------------------------------------------


def with_links(markdown: str, source: str, pages: dict[str, str]) -> str:
    """Return the text of a file with its links changed to addresses on the site.

    Args:
        markdown: the text.
        source: path of the file in the repository.
        pages: address of each page by its path in the repository.
    """

    def replace(match: re.Match[str]) -> str:
        text, target, anchor = match[1], match[2], match[3] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return match[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        path = f"{path}/README.md" if f"{path}/README.md" in pages else path
        if path in pages:
            return f"[{text}]({os.path.relpath(pages[path], os.path.dirname(pages[source]) or '.')}{anchor})"
        if path.startswith("docs/") and (ROOT / path).is_file():
            return f"[{text}]({os.path.relpath(path.removeprefix('docs/'), os.path.dirname(pages[source]) or '.')})"
        if not (ROOT / path).exists():
            return match[0]  # the strict build reports the broken link
        return text if text.strip("`") in (target, path) else f"{text} (`{path}`)"

    parts = re.split(r"(```.*?```)", markdown, flags=re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replace, part) for part in parts)


# ---- reference ------------------------------------------------------------------------------------------


def packages() -> dict[str, Path]:
    """Return the packages that have public names, with the paths of their stubs."""
    stubs = sorted(PACKAGE.rglob("__init__.pyi"))
    return {".".join(stub.parent.relative_to(ROOT).parts): stub for stub in stubs}


def api_pages() -> dict[str, str]:
    """Return the pages of the API reference: one per package, with a heading per public name."""
    pages = {}
    for package, stub in packages().items():
        lines = [f"# {package}", ""]
        for name, (module, original) in sorted(public_names(stub).items()):
            lines += [*_entry(package, name, module, original), ""]
        pages[f"api/{package}.md"] = "\n".join(lines)
    links = "\n".join(f"- [{package}]({package}.md)" for package in packages())
    pages["api/index.md"] = f"# Reference\n\nPublic names; everything else may change.\n\n{links}\n"
    return pages


def _entry(package: str, name: str, module: str, original: str) -> Iterator[str]:
    node, text = _definition(module, original)
    yield f"## {name}"
    yield ""
    yield f"```python\nfrom {package} import {name}\n\n{_signature(name, node)}\n```"
    yield ""
    yield from _docstring_markdown(text)


def _definition(module: str, name: str) -> tuple[ast.stmt | None, str]:
    """Return the statement that defines a name, and its docstring."""
    path = ROOT.joinpath(*module.split("."))
    file = path.with_suffix(".py") if path.with_suffix(".py").is_file() else path / "__init__.py"
    body = ast.parse(file.read_text(encoding="utf-8")).body
    for index, node in enumerate(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return node, ast.get_docstring(node) or ""
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            following = body[index + 1] if index + 1 < len(body) else None
            is_docstring = isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            return node, str(following.value.value) if is_docstring else ""  # type: ignore[union-attr]
        if isinstance(node, ast.ImportFrom) and any((a.asname or a.name) == name for a in node.names):
            original = next(a.name for a in node.names if (a.asname or a.name) == name)
            return _definition(str(node.module), original)
    return None, ""


def _signature(name: str, node: ast.stmt | None) -> str:
    if isinstance(node, ast.FunctionDef):
        arguments, skipped = node.args, 0
    elif isinstance(node, ast.ClassDef):
        init = next((n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == "__init__"), None)
        if init is None:
            fields = [ast.unparse(n) for n in node.body if isinstance(n, ast.AnnAssign)]
            return f"{name}({', '.join(fields)})"
        arguments, skipped = init.args, 1  # self
    else:
        return name if node is None else ast.unparse(node)[:200]
    visible = ast.arguments(
        posonlyargs=arguments.posonlyargs, args=arguments.args[skipped:], vararg=arguments.vararg,
        kwonlyargs=arguments.kwonlyargs, kw_defaults=arguments.kw_defaults, kwarg=arguments.kwarg,
        defaults=arguments.defaults,
    )  # fmt: skip
    return f"{name}({ast.unparse(visible)})"


def _docstring_markdown(text: str) -> Iterator[str]:
    """Convert a docstring to Markdown: sections become lists, examples become code."""
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
    """Convert roles and double backticks of reStructuredText to Markdown, and escape HTML."""
    text = re.sub(r":\w+:`~?(?:[\w.]+\.)?(\w+)`", r"`\1`", text).replace("``", "`")
    return "".join(
        part if part.startswith("`") else part.replace("<", "&lt;").replace("[", "\\[")
        for part in re.split(r"(`[^`]*`)", text)
    )


# ---- support --------------------------------------------------------------------------------------------


def matrix() -> dict[str, dict[str, str]]:
    """Return the test of each supported combination, by method and feature."""
    return yaml.safe_load(MATRIX.read_text(encoding="utf-8"))


def support_page() -> str:
    """Return the page of supported combinations: a table, then the test of each."""
    methods = matrix()
    features = list(dict.fromkeys(feature for tests in methods.values() for feature in tests))
    head = [
        *("---", "hide: [toc]", "---"),  # the wide table needs the space
        "# Support",
        "",
        "Each yes has a test in the repository; an empty cell was not tested.",
        "",
    ]
    # features are rows, since there are more features than methods
    table = [f"| | {' | '.join(methods)} |", f"|---|{':---:|' * len(methods)}"]
    table += [
        f"| {feature} | {' | '.join('yes' if feature in tests else '' for tests in methods.values())} |"
        for feature in features
    ]
    lines = ["", "## The tests", ""]
    for method, tests in methods.items():
        lines += [f"### {method}", "", *(f"- {feature}: `{test}`" for feature, test in tests.items()), ""]
    return "\n".join([*head, *table, *lines])


def generated() -> dict[str, str]:
    """Return all pages that are not files of ``docs/``, by address."""
    pages = sources()
    readmes = {
        page: with_links((ROOT / source).read_text(encoding="utf-8"), source, pages)
        for source, page in pages.items()
        if not source.startswith("docs/")
    }
    return readmes | api_pages() | {"support.md": support_page()}


# ---- MkDocs ---------------------------------------------------------------------------------------------


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for address, markdown in generated().items():
        files.append(File.generated(config, address, content=markdown))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    source = f"docs/{page.file.src_uri}"
    return with_links(markdown, source, sources()) if (ROOT / source).is_file() else markdown
