"""What `lightning_idc.data` offers, and that asking for its name alone loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

import lightning_idc.data as data


def test_importing_the_package_loads_neither_torch_nor_lightning() -> None:
    code = "import sys, lightning_idc.data; print(sorted({'torch', 'lightning', 'PIL', 'numba'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_names_lead_to_classes() -> None:
    from lightning_idc.data import DeepPCB, FolderPairs, PairDataModule, PairSource, SyntheticPairs

    assert all(issubclass(kind, PairDataModule) for kind in (DeepPCB, FolderPairs, SyntheticPairs))
    assert {kind.__name__ for kind in (DeepPCB, FolderPairs, PairDataModule, PairSource, SyntheticPairs)} == set(
        data.__all__
    )
    with pytest.raises(AttributeError, match="Nothing"):
        data.Nothing  # noqa: B018
