"""Data modules of image pairs: one file per benchmark, folders, and a rendered world."""
