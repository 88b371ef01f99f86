"""`python -m nsbox.integrations.jupyter`."""

from __future__ import annotations

import sys

from nsbox.integrations.jupyter.command import main

sys.exit(main())
