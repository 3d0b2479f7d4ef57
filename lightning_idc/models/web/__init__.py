"""WebCaptioner: describes the change of one element between two screenshots of a web page."""

from __future__ import annotations
