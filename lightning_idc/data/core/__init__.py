"""Data modules, data sets, samplers and loaders of pairs."""
