"""Installs recipes/ as the package lightning_idc.recipes, which setup.cfg cannot express."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["lightning_idc", "lightning_idc.*"]), "lightning_idc.recipes"],
    package_dir={"lightning_idc.recipes": "recipes"},
)
