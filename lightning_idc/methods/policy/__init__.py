"""Policy optimisation by rewards: SCST, GRPO and its variants.

Example:
    >>> import torch
    >>> from lightning_idc.methods.policy import FactsReward, GroupRelative, group_relative
    >>> GroupRelative(FactsReward({"relation": 2.0}), samples=8, beta=0.02).surrogate.averaging
    'sample'
    >>> group_relative(torch.tensor([[1.0, 1.0, 4.0]]), scale="none")  # rewards of three captions of one pair
    tensor([[-1., -1.,  2.]])
"""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
