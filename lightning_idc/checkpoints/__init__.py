"""Reading and writing weights: the only door for checkpoints, by path, folder or name."""
