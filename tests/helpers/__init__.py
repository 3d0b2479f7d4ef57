"""Helpers shared by several tests: tiny models and data, training runs, and processes."""
