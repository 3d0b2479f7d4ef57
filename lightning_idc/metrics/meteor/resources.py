"""Location of METEOR's tables."""

from __future__ import annotations

from pathlib import Path


def pycocoevalcap_folder() -> Path | None:
    """Folder of the installed pycocoevalcap; None where it is not installed."""
    try:
        import pycocoevalcap
    except ImportError:
        return None
    # a namespace package has no __file__
    return next((Path(folder) for folder in pycocoevalcap.__path__ if Path(folder).is_dir()), None)
