"""Errors that a user sees have a specific class: the base class is only for ``except``, and has one name."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightning_idc.utils import errors

PACKAGE = Path(errors.__file__).parents[1]
FILES = sorted(path.relative_to(PACKAGE).as_posix() for path in PACKAGE.rglob("*.py"))
KINDS = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, errors.IDCError)}


def faults_of(source: str) -> Iterator[str]:
    """Lines that raise the base class, give it another name, or import an error from a module other than its own."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Raise(exc=ast.expr() as error):
                kind = error.func if isinstance(error, ast.Call) else error
                if _last_name(kind) == "IDCError":
                    yield f"line {node.lineno} raises IDCError"
            case ast.Assign(value=ast.expr() as value) if _last_name(value) == "IDCError":
                yield f"line {node.lineno} gives IDCError another name"
            case ast.ImportFrom(module=module, names=names):
                for alias in names:
                    if alias.name in KINDS and module != errors.__name__:
                        yield f"line {node.lineno} imports {alias.name} from {module}"
                    if alias.name == "IDCError" and alias.asname not in (None, "IDCError"):
                        yield f"line {node.lineno} gives IDCError another name"


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]


@pytest.mark.slow
def test_the_library_raises_kinds_of_errors_alone() -> None:
    faults = [f"{file}: {fault}" for file in FILES for fault in faults_of((PACKAGE / file).read_text(encoding="utf-8"))]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    [
        "raise IDCError('x')",
        "raise errors.IDCError('x') from None",
        "raise IDCError",
        "DataError = IDCError",
        "from lightning_idc.images.types import DataError",
        "from lightning_idc.utils.errors import IDCError as PairError",
    ],
)
def test_the_check_finds_every_use_of_the_base_class(source: str) -> None:
    assert list(faults_of(source))


def test_the_check_lets_kinds_and_except_clauses_pass() -> None:
    source = (
        "from lightning_idc.utils.errors import IDCError\ntry:\n    raise DataError('x')\nexcept IDCError:\n    raise"
    )
    assert not list(faults_of(source))


def test_the_traceback_of_a_worker_is_no_part_of_a_message() -> None:
    trace = 'Original Traceback (most recent call last):\n  File "x.py", line 1, in f\n    raise StoreError(x)\n'
    message = f"Caught StoreError in DataLoader worker process 0.\n{trace}lightning_idc.utils.errors.StoreError: a\nb\n"
    assert str(errors.StoreError(message)) == "a b"
    assert str(errors.StoreError("a ValueError: b\nc")) == "a ValueError: b c"


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("no file 'https://me:pw@host/a'; expected a path", "no file 'https://***@host/a'; expected a path"),
        ("no file https:/me:pw@host/a", "no file https:/***@host/a"),  # as Path prints it
        ("'s3://bucket/a.png?X-Amz-Signature=pw&b=pw' is a URL", "'s3://bucket/a.png?***' is a URL"),
        ("why? see https://host/page", "why? see https://host/page"),
        ("C:/folder/a@b.png?", "C:/folder/a@b.png?"),
    ],
)
def test_no_error_shows_secrets_of_urls(message: str, expected: str) -> None:
    assert str(errors.DataError(message)) == expected
