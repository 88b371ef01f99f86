"""python -m nsbox: the same as the nsbox command."""

import sys

from nsbox._cli import main

if __name__ == "__main__":
    sys.exit(main())
