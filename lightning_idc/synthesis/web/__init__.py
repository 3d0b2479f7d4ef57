"""Pairs of web pages: random HTML, one changed property, and a browser that renders both versions."""

from __future__ import annotations
