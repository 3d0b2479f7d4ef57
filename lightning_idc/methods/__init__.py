"""One folder per method."""
