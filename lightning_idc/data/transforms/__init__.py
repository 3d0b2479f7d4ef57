"""Transforms and corruptions of pairs."""
