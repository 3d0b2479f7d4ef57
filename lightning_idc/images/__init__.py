"""Images: decode a file to stored values, map them to uint8, compare files, and what a captioner reads."""
