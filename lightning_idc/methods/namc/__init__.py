"""Noise-aware modelling and captioning."""
