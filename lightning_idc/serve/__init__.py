"""Answers about pairs of images for the commands `describe`, `compare`, `predict` and `serve`."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
