"""`python -m lightning_idc` is `lightning-idc`."""

import os
import sys

# `-m` puts the current folder first on the path, where a file beside a downloaded checkpoint could be imported
sys.path[:] = [place for place in sys.path if place and os.path.abspath(place) != os.getcwd()]

from lightning_idc.cli import main  # noqa: E402

if __name__ == "__main__":
    sys.exit(main())
