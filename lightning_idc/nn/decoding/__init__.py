"""Decoding captions: greedy, beam search, sampling."""
