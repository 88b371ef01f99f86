"""Each adapter is tested with its real framework, in an environment of its own: `.ci/frameworks` makes them.

`NSBOX_FRAMEWORK=NAME` says which framework the running environment has. Without it no test here is collected.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

_HERE = Path(__file__).parent
sys.path[:0] = [str(_HERE / "lib"), str(_HERE.parent / "docs")]  # the latter has the reader of Markdown
_FRAMEWORK = os.environ.get("NSBOX_FRAMEWORK", "")

collect_ignore = [path.name for path in _HERE.iterdir() if path.is_dir() and path.name != _FRAMEWORK]
if not _FRAMEWORK:
    collect_ignore.append("test_page.py")
