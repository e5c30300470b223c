"""`python -m scope_wm` is the command `scope-wm`."""

import sys

from scope_wm.cli import main

if __name__ == "__main__":
    sys.exit(main())
