"""A static pair in, a sentence out: the baseline captioner."""
