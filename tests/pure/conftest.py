"""What the pure tests share is a package of its own, in lib."""

import sys
from pathlib import Path

from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parent / "lib"))

from nsbox_pure import calm

settings.register_profile("calm", calm)
settings.load_profile("calm")
