"""Every public metric has an example in its docstring, and every example of the package runs."""

from __future__ import annotations

import doctest
import importlib
import inspect
import pkgutil

import pytest

from lightning_idc import metrics

MODULES = sorted(module.name for module in pkgutil.walk_packages(metrics.__path__, "lightning_idc.metrics."))


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name: str) -> None:
    outcome = doctest.testmod(importlib.import_module(name))
    assert not outcome.failed


def test_every_public_metric_has_an_example() -> None:
    public = {name: getattr(metrics, name) for name in metrics.__all__}
    computing = {
        name: value for name, value in public.items() if inspect.isfunction(value) or hasattr(value, "compute")
    }
    assert len(computing) >= 7
    without = [name for name, value in computing.items() if ">>>" not in (inspect.getdoc(value) or "")]
    assert not without
