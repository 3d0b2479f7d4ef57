"""Stores on disk: caches, features, rendered pairs, records."""
