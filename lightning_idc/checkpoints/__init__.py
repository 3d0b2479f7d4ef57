"""Checkpoint files and folders of weights: reading, writing, and resolving their names."""
