"""Prompts of Img-Diff: the authors' strings, with file and line of each.

The strings are copied from data-juicer, branch ``ImgDiff``, folder ``Img-Diff-codes`` (commit e6f3158, Apache-2.0),
typing errors included; file and line are in `ORIGINS`. The supplement prints only the questions of Figure 10 and
section 12.
"""

from __future__ import annotations

from collections.abc import Sequence

CAPTION_EDIT = (
    'Here is a sentence: "{caption}". Please replace one entity in this sentence with another entity, such as an '
    "animal, a vehicle, or a piece of furniture. Please only answer with the replaced sentence."
)
"""Asks Vicuna, in its chat template, for one edit of each caption."""
REGION_CAPTION = "Please provide a clear description for this region: [{x1}, {y1}, {x2}, {y2}]."
"""Asks LLaVA about a box of the whole image: in fractions of its sides, or in pixels for a removed object."""
_ANALYSE = "Analyse the the left image and the right image (separated by the black vertical bar). "
DIFFERENCE = _ANALYSE + (
    "The detail within the red bounding box in the left image is: {caption1}, while the detail within the red bounding "
    "box in the right image is: {caption2}. What is their difference? Answer with a few concise sentences."
)
"""Asks LLaVA about both images, side by side."""
RELEASED_QUESTION = _ANALYSE + (
    "What is the difference between the red bounding box area in each image? Answer the question in a few concise "
    "sentences."
)
"""Question of the released data."""
REMOVAL_INPAINT = "background, nothing, 8k"
REMOVAL_QUESTION = _ANALYSE + (
    'Which image has the object related to "{caption}" within the red bounding box?\n'
    "A. the left image\nB. the right image\nAnswer with the option's letter from the given choices directly."
)
UNNATURAL_FILTER = "Please determine if the content of these two images is reasonable. Answer only with 'yes' or 'no'."
"""Asks InternVL about both images, side by side."""
COCOT = "Please identify the similarities and differences between these two images"
"""First question of section 12; its answer precedes the second question."""

ORIGINS = {
    "caption_edit": (CAPTION_EDIT, "pairs_generator/gen.py", 52),
    "region_caption": (REGION_CAPTION, "object_replacement/generate_final_data_new_edit.py", 153),
    "difference": (DIFFERENCE, "object_replacement/generate_final_data_new_edit.py", 302),
    "released_question": (RELEASED_QUESTION, "object_replacement/generate_final_data_new_edit.py", 354),
    "removal_inpaint": (REMOVAL_INPAINT, "object_removal/generate_inpaint.py", 369),
    "removal_region_caption": (REGION_CAPTION, "object_removal/generate_inpaint.py", 374),
    "removal_released_question": (REMOVAL_QUESTION, "object_removal/generate_inpaint.py", 425),
    "unnatural_filter": ("<image>\n" + UNNATURAL_FILTER, "pairs_generator/unnatural_images_filter.py", 161),
}
"""Text, file below ``Img-Diff-codes`` and line of each prompt; the filter's string includes the image token there."""


def box_in_fractions(box: Sequence[float], size: Sequence[int]) -> list[str]:
    """Box x1 y1 x2 y2 in fractions of width and height, with two decimals, as in the scripts and the release.

    Args:
        box: box in pixels.
        size: height and width in pixels.

    Example:
        >>> box_in_fractions([0, 10, 50, 100], [100, 100])
        ['0.00', '0.10', '0.50', '1.00']
    """
    height, width = size
    return [f"{value / side:.2f}" for value, side in zip(box, (width, height, width, height), strict=True)]


def box_in_pixels(box: Sequence[float], size: Sequence[int]) -> list[str]:
    """Box x1 y1 x2 y2 in pixels, formatted as Python floats."""
    return [str(float(value)) for value in box]
