"""Policy optimisation: captioners that learn from rewards of what they say themselves (SCST, GRPO and kin)."""
