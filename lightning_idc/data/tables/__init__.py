"""Readers and stores of annotations, images and features."""
