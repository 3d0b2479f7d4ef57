"""Imports that set environment variables once and for all, before a test could be blamed for them."""

import toy_idc  # noqa: F401

import lightning_idc.cli.training  # noqa: F401
