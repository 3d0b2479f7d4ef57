"""What measures speed and memory: ``python -m benchmarks.NAME``; studies of methods are in ``studies``."""
