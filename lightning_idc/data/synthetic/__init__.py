"""Synthetic CLEVR-like pairs with complete ground truth, rendered on demand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_idc.data.synthetic.cells import ObjectCells as ObjectCells
    from lightning_idc.data.synthetic.cells import SyntheticCells as SyntheticCells
    from lightning_idc.data.synthetic.datamodule import SyntheticPairs as SyntheticPairs
    from lightning_idc.data.synthetic.source import SyntheticSource as SyntheticSource

_MODULES = {
    "ObjectCells": "cells",
    "SyntheticCells": "cells",
    "SyntheticPairs": "datamodule",
    "SyntheticSource": "source",
}
__all__ = ["ObjectCells", "SyntheticCells", "SyntheticPairs", "SyntheticSource"]


def __getattr__(name: str) -> Any:
    # lazy, as parsing captions needs neither Lightning nor a data loader
    from importlib import import_module

    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
