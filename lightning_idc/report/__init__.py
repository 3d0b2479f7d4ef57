"""Tables, contact sheets and pages of what a captioner says."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
