"""Data modules of image pairs: one file per benchmark, folders, and a rendered world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_idc.data.datamodule import PairDataModule as PairDataModule
    from lightning_idc.data.deeppcb import DeepPCB as DeepPCB
    from lightning_idc.data.folder import FolderPairs as FolderPairs
    from lightning_idc.data.source import PairSource as PairSource
    from lightning_idc.data.synthetic import SyntheticPairs as SyntheticPairs

_HOMES = {
    "DeepPCB": "deeppcb",
    "FolderPairs": "folder",
    "PairDataModule": "datamodule",
    "PairSource": "source",
    "SyntheticPairs": "synthetic",
}
__all__ = ["DeepPCB", "FolderPairs", "PairDataModule", "PairSource", "SyntheticPairs"]


def __getattr__(name: str) -> Any:
    # reading captions back needs neither Lightning nor a data loader
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
