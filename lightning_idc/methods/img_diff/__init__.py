"""Img-Diff: pairs with replaced or removed objects, the boxes in which they differ, and sentences about each box.

Example:
    >>> from lightning_idc.methods.img_diff import DifferenceAreas, PairSimilarity
    >>> stages = [PairSimilarity(filters="embedded"), DifferenceAreas(filters="embedded")]
    >>> stages[0].reads
    ('before', 'after')
"""

from lightning_idc.utils.lazy import attach

__getattr__, __dir__, __all__ = attach(__name__, __file__)
