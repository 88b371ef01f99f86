"""Runs in a sandbox: moves, links and replaces whatever it can, to get at it in the next sandbox."""

import contextlib
import json
import os
import sys

workspace, paths, tries = json.load(sys.stdin)
for n, path in enumerate(paths + paths[::-1]):
    for goal in (f"{os.path.dirname(path)}/moved {n}", f"{workspace}/moved {n}"):
        with contextlib.suppress(OSError):
            os.rename(path, goal)
            if tries == "links":
                os.symlink(goal, path)
            break
    with contextlib.suppress(OSError):
        os.link(path, f"{workspace}/linked {n}")
for path in paths if tries == "directories" else ():
    with contextlib.suppress(OSError):
        os.makedirs(path)
