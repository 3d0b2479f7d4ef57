"""Data modules and data sets of image pairs: one file per benchmark, folders, and a rendered world."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
