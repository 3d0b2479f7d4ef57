"""Image difference captioning with PyTorch Lightning: say what changed between two images."""

from lightning_idc.utils.lazy import attach

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = attach(__name__, __file__)
