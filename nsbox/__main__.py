"""python -m nsbox: the same as the nsbox command."""

import sys

if __name__ == "__main__" and not sys.flags.safe_path:
    del sys.path[0]  # the current directory, which -m has put there, with what commands have left in it

from nsbox._cli import main

if __name__ == "__main__":
    sys.exit(main())
