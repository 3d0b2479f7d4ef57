"""PairTransformer, the baseline captioner: a transformer over grid features of both images."""
