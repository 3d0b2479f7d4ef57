"""Image difference captioning with PyTorch Lightning: say what changed between two images."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# name -> module; imported when first used, so that `import lightning_idc` needs neither torch nor Lightning
_EXPORTS = {
    "Addon": "lightning_idc.addon",
    "AddonCallback": "lightning_idc.addon",
    "TrainingStep": "lightning_idc.addon",
    "PairCaptioner": "lightning_idc.captioner",
    "Caption": "lightning_idc.pairs",
    "PairBatch": "lightning_idc.pairs",
    "PairError": "lightning_idc.errors",
    "PairFeatures": "lightning_idc.pairs",
    "PairSample": "lightning_idc.pairs",
}

if TYPE_CHECKING:
    from lightning_idc.addon import Addon, AddonCallback, TrainingStep
    from lightning_idc.captioner import PairCaptioner
    from lightning_idc.pairs import Caption, PairBatch, PairError, PairFeatures, PairSample

__all__ = [
    "Addon",
    "AddonCallback",
    "Caption",
    "PairBatch",
    "PairCaptioner",
    "PairError",
    "PairFeatures",
    "PairSample",
    "TrainingStep",
    "__version__",
]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'lightning_idc' has no attribute {name!r}")
    return getattr(importlib.import_module(_EXPORTS[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
