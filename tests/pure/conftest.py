"""What the pure tests share is a package of its own, in lib."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "lib"))
