"""Images: the types of a pair, decoding files, mapping values to uint8."""
