"""Captioners of image pairs, and the base classes of their add-ons and adapters."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
