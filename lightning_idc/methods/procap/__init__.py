"""ProCap: model how the change happened, then say it (Sun et al. 2026)."""
