"""Callbacks that join any captioner or show what it does."""
