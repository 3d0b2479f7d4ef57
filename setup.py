"""What setup.cfg cannot say: recipes/ is installed inside the package, where `lightning-idc list recipes` looks."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["lightning_idc", "lightning_idc.*"]), "lightning_idc.recipes"],
    package_dir={"lightning_idc.recipes": "recipes"},
)
