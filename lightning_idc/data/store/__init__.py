"""On-disk store of images, features and records: memory-mapped Arrow shards with checksums, and a manifest."""
