"""`python -m lightning_idc` is `lightning-idc`."""

import sys

from lightning_idc.cli import main

if __name__ == "__main__":
    sys.exit(main())
