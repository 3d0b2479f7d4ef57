"""Names exported by `lightning_idc.data`; importing the package alone loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lightning_idc.data as data
from lightning_idc.data.transforms.robustness import Corruption


def test_importing_the_package_loads_neither_torch_nor_lightning() -> None:
    code = "import sys, lightning_idc.data; print(sorted({'torch', 'lightning', 'PIL', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_exported_names_are_classes() -> None:
    kinds = {name: getattr(data, name) for name in data.__all__}
    assert {kind.__name__ for kind in kinds.values()} == set(data.__all__)
    roots = (data.PairDataModule, data.PairSource, data.PairTransform, Corruption)
    assert all(issubclass(kind, roots) for kind in kinds.values())
    with pytest.raises(AttributeError, match="Nothing"):
        data.Nothing  # noqa: B018
