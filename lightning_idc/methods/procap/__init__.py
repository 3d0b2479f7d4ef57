"""ProCap: explicit procedure modelling for change captioning (Sun et al. 2026).

Example:
    >>> import torch
    >>> from lightning_idc.methods.procap import CrossFade, FrameInterpolator, masked_sequence_loss
    >>> FrameInterpolator("procedures", frames=7, midpoint=CrossFade()).frames
    7
    >>> masked_sequence_loss(torch.zeros(3, 4), torch.tensor([0, 1, 2]))  # log 4
    tensor(1.3863)
"""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
