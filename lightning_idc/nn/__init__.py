"""Torch blocks that at least two methods use; imports no Lightning."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
