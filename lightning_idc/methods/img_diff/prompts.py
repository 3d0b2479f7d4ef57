"""Prompts of Img-Diff: the authors' strings, with file and line of each.

The strings are those of data-juicer, branch ``ImgDiff``, folder ``Img-Diff-codes`` (commit e6f3158, Apache-2.0), typing
errors included; file and line are in `ORIGINS`. The supplement prints the question of Figure 10 and that of section 12.
"""

from __future__ import annotations

from collections.abc import Sequence

CAPTION_EDIT = (
    'Here is a sentence: "{caption}". Please replace one entity in this sentence with another entity, such as an '
    "animal, a vehicle, or a piece of furniture. Please only answer with the replaced sentence."
)
"""To Vicuna, in its template; one edit a caption."""
REGION_CAPTION = "Please provide a clear description for this region: [{x1}, {y1}, {x2}, {y2}]."
"""To LLaVA about the whole image, with the box in fractions of its sides; about a removed object with it in pixels."""
_ANALYSE = "Analyse the the left image and the right image (separated by the black vertical bar). "
DIFFERENCE = _ANALYSE + (
    "The detail within the red bounding box in the left image is: {caption1}, while the detail within the red bounding "
    "box in the right image is: {caption2}. What is their difference? Answer with a few concise sentences."
)
"""To LLaVA, about both images in one."""
RELEASED_QUESTION = _ANALYSE + (
    "What is the difference between the red bounding box area in each image? Answer the question in a few concise "
    "sentences."
)
"""To a model that is trained on the released data."""
REMOVAL_INPAINT = "background, nothing, 8k"
REMOVAL_QUESTION = _ANALYSE + (
    'Which image has the object related to "{caption}" within the red bounding box?\n'
    "A. the left image\nB. the right image\nAnswer with the option's letter from the given choices directly."
)
UNNATURAL_FILTER = "Please determine if the content of these two images is reasonable. Answer only with 'yes' or 'no'."
"""To InternVL, about both images in one."""
COCOT = "Please identify the similarities and differences between these two images"
"""Section 12: the first question; its answer is put before the second one."""

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
"""Text, file below ``Img-Diff-codes`` and line of each prompt; the image token belongs to the filter's string there."""


def box_in_fractions(box: Sequence[float], size: Sequence[int]) -> list[str]:
    """Box x1 y1 x2 y2 in fractions of width and height: two decimals, as in the scripts and the release.

    Args:
        box: box in pixels.
        size: height and width in pixels.

    Example:
        >>> box_in_fractions([0, 10, 50, 100], [100, 100])
        ['0.00', '0.10', '0.50', '1.00']
    """
    height, width = size
    return [f"{value / full:.2f}" for value, full in zip(box, (width, height, width, height), strict=True)]


def box_in_pixels(box: Sequence[float], size: Sequence[int]) -> list[str]:
    """Box x1 y1 x2 y2 in pixels, each as Python writes a float."""
    return [str(float(value)) for value in box]
