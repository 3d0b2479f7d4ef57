"""Changes between two images, by rules and without a network: a sentence, boxes and JSON.

from lightning_idc.rules import describe_changes

answer = describe_changes("before.png", "after.png")
answer.sentence     # "A red object was added in the upper right."
answer.regions      # each with box, kind, score, shift and colours
answer.to_dict()    # the same as JSON holds it
"""

from lightning_idc.rules.baseline import rules_captions as rules_captions
from lightning_idc.rules.describe import describe_changes as describe_changes
from lightning_idc.rules.description import Description as Description
from lightning_idc.rules.description import Region as Region

__all__ = ["Description", "Region", "describe_changes", "rules_captions"]
