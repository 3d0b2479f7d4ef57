"""Metrics of captions, and the evaluation protocols of published benchmarks."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
