"""One store for everything that is kept on disk: Arrow shards with checksums, memory-mapped, and one manifest."""
