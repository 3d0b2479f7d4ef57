"""From two images to an answer: what `describe`, `compare`, `predict` and `serve` share."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
