"""`python -m lightning_idc` is `lightning-idc`."""

import os
import sys

# `-m` puts the current folder first on the path, where a file beside a downloaded checkpoint could be imported
sys.path[:] = [folder for folder in sys.path if folder and os.path.abspath(folder) != os.getcwd()]

from lightning_idc.cli import command  # noqa: E402

if __name__ == "__main__":
    command()
