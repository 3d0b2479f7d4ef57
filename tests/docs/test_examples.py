"""Examples in docstrings run; tests/data/test_data_examples.py runs those of data sets."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "lightning_idc"
DATA_SETS = ("data/benchmarks", "data/synthetic", *(f"data/{path.name}" for path in (PACKAGE / "data").glob("*.py")))
MODULES = [
    "lightning_idc." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8") and not path.relative_to(PACKAGE).as_posix().startswith(DATA_SETS)
]


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    messages: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(example, out=messages.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(messages)
