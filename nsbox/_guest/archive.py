"""The program as bytes, for the process that starts the interpreter."""

from __future__ import annotations

import io
import os
import zipfile

from nsbox._base.paths import PACKAGE

_HERE = os.path.join(PACKAGE, "_guest")
_NAME = "_nsbox_guest"  # boot.PACKAGE


def boot_text() -> str:
    """Return what the interpreter gets by its option -c."""
    with open(os.path.join(_HERE, "boot.py"), encoding="utf-8") as file:
        return file.read()


def archive() -> bytes:
    """Return a zip file of the modules, uncompressed: an interpreter without zlib can read it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for room in ("", "results"):
            for name in sorted(os.listdir(os.path.join(_HERE, room))):
                if name.endswith(".py") and name not in ("boot.py", "archive.py"):
                    with open(os.path.join(_HERE, room, name), "rb") as source:
                        file.writestr(zipfile.ZipInfo(os.path.join(_NAME, room, name)), source.read())
    return buffer.getvalue()
