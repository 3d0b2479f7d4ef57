"""Img-Diff: pairs with replaced or removed objects, the boxes where they differ, and sentences about each."""

from __future__ import annotations
