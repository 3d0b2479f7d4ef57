"""Pairs of web pages: HTML is drawn at random, one property of it is changed, and a browser renders both."""

from __future__ import annotations
