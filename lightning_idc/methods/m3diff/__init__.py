"""M3Diff: multi-scale differential perception (OmniDiff)."""
