"""NAMC: noise-robust pre-training and a captioner (Guo et al. 2025).

Example:
    >>> import torch
    >>> from lightning_idc.methods.namc import MaskedReconstruction, NoiseMasking, info_nce
    >>> callbacks = [NoiseMasking(encoder="relevance.ckpt"), MaskedReconstruction(tokenizer="tokens.ckpt")]
    >>> info_nce(torch.ones(2, 2), torch.ones(2, 2))
    tensor(1.3863)
"""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
