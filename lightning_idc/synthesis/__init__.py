"""Making training pairs: resumable pipelines of predict stages over records."""

from __future__ import annotations
