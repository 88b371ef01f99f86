"""Runs in a sandbox: prints the contents of every file that it can read below a directory, and appends to it."""

import contextlib
import json
import os
import sys

top = json.load(sys.stdin)
for follow in (False, True):
    for n, (here, _, files) in enumerate(os.walk(top, followlinks=follow)):
        if n > 300:
            break  # going round in links
        for name in files:
            with contextlib.suppress(OSError), open(f"{here}/{name}", "rb") as file:
                print(file.read().decode())
            with contextlib.suppress(OSError), open(f"{here}/{name}", "ab") as file:
                file.write(b"!")
