"""Readers of annotation tables and image folders, and download of benchmarks."""
