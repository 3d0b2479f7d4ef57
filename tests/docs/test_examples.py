"""Examples in docstrings run, and public losses have one; those of data sets: tests/data/test_data_examples.py."""

from __future__ import annotations

import doctest
import importlib
import inspect
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[2] / "lightning_idc"
DATA_SETS = ("data/benchmarks", "data/synthetic", *(f"data/{path.name}" for path in (PACKAGE / "data").glob("*.py")))
MODULES = [
    "lightning_idc." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
    for path in sorted(PACKAGE.rglob("*.py"))
    if ">>> " in path.read_text(encoding="utf-8") and not path.relative_to(PACKAGE).as_posix().startswith(DATA_SETS)
]
LOSSES = {
    "lightning_idc.methods.adpo.losses": ("preference_probability", "margin", "dpo"),
    "lightning_idc.methods.namc.losses": ("late_interaction", "sdm", "info_nce_of_similarity", "info_nce"),
    "lightning_idc.models.pretraining.cell_classification": ("naming_loss",),
    "lightning_idc.methods.procap.procedure_net": ("masked_sequence_loss", "discrimination_loss"),
    "lightning_idc.methods.procap.official.encoder": ("smoothed_divergence",),
    "lightning_idc.methods.procap.official.procedure": ("summed_consistency_loss",),
    "lightning_idc.nn.retrieval": ("symmetric_cross_entropy",),
}


@pytest.mark.parametrize("name", MODULES)
def test_the_examples_of_a_module_run(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = importlib.import_module(name)
    told: list[str] = []
    runner = doctest.DocTestRunner(verbose=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    for example in doctest.DocTestFinder(exclude_empty=True).find(module, name):
        runner.run(example, out=told.append)
    assert runner.summarize(verbose=False).failed == 0, "".join(told)


@pytest.mark.parametrize("name", LOSSES)
def test_every_public_loss_has_an_example(name: str) -> None:
    module = importlib.import_module(name)
    for function in LOSSES[name]:
        assert ">>> " in (inspect.getdoc(getattr(module, function)) or ""), f"{name}.{function} has no example"
