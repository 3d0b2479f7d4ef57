"""Rule-based description of the changes between two images, without a network: a sentence, boxes and JSON.

from lightning_idc.rules import describe_changes

description = describe_changes("before.png", "after.png")
description.sentence     # "A red object was added in the upper right."
description.regions      # box, kind, score, shift and colours of each changed region
description.to_dict()    # plain values for JSON
"""

from lightning_idc.rules.baseline import rules_captions as rules_captions
from lightning_idc.rules.describe import describe_changes as describe_changes
from lightning_idc.rules.description import Description as Description
from lightning_idc.rules.description import Region as Region

__all__ = ["Description", "Region", "describe_changes", "rules_captions"]
