"""Helpers of the differential tests: nsbox and bwrap side by side, and a model of workspace policies."""

import os

THOROUGH = bool(int(os.environ.get("NSBOX_THOROUGH", "0")))

EXAMPLES = int(os.environ.get("NSBOX_EXAMPLES") or (150 if THOROUGH else 30))
"""How many examples a property is tried with; NSBOX_EXAMPLES=5000 for a long search."""

PATIENCE = 300 + EXAMPLES
"""Seconds until a test here counts as hanging: far more than it takes, on a machine that does other things as well."""
