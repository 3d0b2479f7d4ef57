"""Load tables once in the process that others are forked from, so that each does not have to load them itself.

These are METEOR's tables, and the patterns with which transformers renames the weights of its models.
"""

from __future__ import annotations

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from lightning_idc.metrics.meteor import meteor_scores

meteor_scores([["running", "dogs"]], [[["a", "dog", "runs"]]])
get_checkpoint_conversion_mapping("llava")
