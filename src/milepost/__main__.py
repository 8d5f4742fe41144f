"""`python -m milepost`: the command line, with this interpreter."""

import sys

from milepost.cli import main

if __name__ == "__main__":
    sys.exit(main())
