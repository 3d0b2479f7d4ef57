"""Making training data: procedures between two images, and what else the methods learn from."""
