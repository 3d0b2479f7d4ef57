"""Callbacks for any captioner, and those of the methods."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
