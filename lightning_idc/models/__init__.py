"""Captioners, and what add-ons and adapters of captioners are made of."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
