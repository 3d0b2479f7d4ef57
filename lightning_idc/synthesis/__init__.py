"""Making training pairs: resumable pipelines of predict stages over records."""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
