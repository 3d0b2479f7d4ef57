"""Images: decode files, map stored values to uint8, compare files, and the data types of pairs and batches."""
