"""M3Diff: multi-scale differential perception (Liu et al. 2025, OmniDiff).

Example:
    >>> from lightning_idc.methods.m3diff import MDPAdapter
    >>> MDPAdapter().name
    'mdp'
"""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
