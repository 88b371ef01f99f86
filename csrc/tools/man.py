"""Write the manual pages: man.py PARENT DIRECTORY, where PARENT is the directory that has the package nsbox.

They are what `nsbox man` prints. The package isn't built yet, and its own __init__ refuses a source tree: a package
that has nothing but its modules stands in for it. The pages need no compiled core.
"""

import sys
from types import ModuleType


def main(parent: str, directory: str) -> int:
    """Write them all."""
    sys.dont_write_bytecode = True  # nothing is left in the source
    package = ModuleType("nsbox")
    package.__path__ = [f"{parent}/nsbox"]
    sys.modules["nsbox"] = package
    from nsbox._cli import main as nsbox

    return nsbox(["man", "--write", directory])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
