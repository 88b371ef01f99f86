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
    return _text("boot.py")


def report_text() -> str:
    """Return what an interpreter gets by its option -c to say what it is made of."""
    return _text("environment/report.py")


def _text(name: str) -> str:
    with open(os.path.join(_HERE, name), encoding="utf-8") as file:
        return file.read()


def archive() -> bytes:
    """Return a zip file of the modules, uncompressed: an interpreter without zlib can read it."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for room in ("", "results", "environment"):
            for name in sorted(os.listdir(os.path.join(_HERE, room))):
                if name.endswith(".py") and name not in ("boot.py", "report.py", "archive.py"):
                    with open(os.path.join(_HERE, room, name), "rb") as source:
                        file.writestr(zipfile.ZipInfo(os.path.join(_NAME, room, name)), source.read())
    return buffer.getvalue()
