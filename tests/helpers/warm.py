"""Imported by what processes are forked from: tables that each of them would otherwise read or make for itself.

These are METEOR's, and the patterns by which transformers renames the weights of its models.
"""

from __future__ import annotations

from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from lightning_idc.metrics.meteor import meteor_scores

meteor_scores([["running", "dogs"]], [[["a", "dog", "runs"]]])
get_checkpoint_conversion_mapping("llava")
