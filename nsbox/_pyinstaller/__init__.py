"""For PyInstaller, which asks installed packages where their hooks are (the entry point pyinstaller40)."""

from __future__ import annotations

import os


def hook_dirs() -> list[str]:
    """Return the directory of the hooks."""
    return [os.path.dirname(__file__)]
