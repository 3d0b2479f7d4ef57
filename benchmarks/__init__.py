"""Benchmarks of speed and memory: ``python -m benchmarks.NAME``; ``studies`` contains studies of methods."""
