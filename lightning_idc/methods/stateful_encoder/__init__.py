"""Stateful visual encoder: the second image is encoded with the first one in view (arXiv 2606.04433).

Example:
    >>> from lightning_idc.methods.stateful_encoder import StatefulEncoderAdapter
    >>> StatefulEncoderAdapter().name
    'stateful_encoder'
"""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
