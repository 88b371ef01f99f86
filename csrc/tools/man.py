"""Write the manual pages: man.py PARENT DIRECTORY, where PARENT is the directory that has the package nsbox.

They are what `nsbox man` prints. The package isn't installed yet, so its source is imported, without the compiled core.
"""

import sys


def main(parent: str, directory: str) -> int:
    """Write them all."""
    sys.dont_write_bytecode = True  # nothing is left in the source
    sys.path.insert(0, parent)
    from nsbox._cli import main as nsbox

    return nsbox(["man", "--write", directory])


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
