"""Files of the library, parsed once for all tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import lightning_idc

PACKAGE = Path(lightning_idc.__file__).parent


@cache
def trees() -> dict[Path, ast.Module]:
    """Syntax trees of all files of the library."""
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
