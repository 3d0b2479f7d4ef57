"""Swapping of the two images of a pair and of the parts of their implicit-change descriptions."""

from __future__ import annotations

from dataclasses import replace

import torch

from lightning_idc.data.benchmarks.implicit_change import component_slices, unquoted
from lightning_idc.data.transforms.pairs import PairTransform
from lightning_idc.images.types import PairSample
from lightning_idc.utils.bounds import Share, check_arguments
from lightning_idc.utils.errors import DataError


def swap_descriptions(text: str) -> str:
    """Swap both parts of an implicit-change description, normalise its white space and remove quotes.

    Raises:
        DataError: the text does not follow the template.

    Example:
        >>> swap_descriptions("The difference between the two images is that the first image shows a dog, "
        ...                   "while the second image has a cat.")
        'The difference between the two images is that the first image shows a cat, while the second image has a dog.'
    """
    line = unquoted(" ".join(text.split()))
    slices = component_slices(line)
    if slices is None:
        raise DataError(
            f"{text[:120]!r} does not follow the template of implicit-change descriptions, so it cannot be "
            "swapped with the images; remove SwapImages for these captions"
        )
    first, second = slices
    middle = line[first.stop : second.start]
    return f"{line[: first.start]}{line[second]}{middle}{line[first]}{line[second.stop :]}"


class SwapImages(PairTransform):
    """Swap before and after together with the object descriptions (NAMC, appendix B.3 and Table 12).

    Args:
        probability: probability of a swap.
    """

    def __init__(self, probability: Share = 0.5) -> None:
        check_arguments(SwapImages.__init__, locals())
        self.probability = probability

    def __call__(self, sample: PairSample, generator: torch.Generator) -> PairSample:
        if float(torch.rand((), generator=generator)) >= self.probability:
            return sample
        return replace(
            sample,
            before=sample.after,
            after=sample.before,
            captions=[swap_descriptions(caption) for caption in sample.captions],
            boxes=None if sample.boxes is None else sample.boxes.flip(1),
            masks=None if sample.masks is None else sample.masks.flip(0),
        )
