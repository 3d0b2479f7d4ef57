"""Helpers without a subject of their own: errors, files, text, names."""
