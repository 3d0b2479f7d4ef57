"""Tables, contact sheets and HTML pages of captions and their scores."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
