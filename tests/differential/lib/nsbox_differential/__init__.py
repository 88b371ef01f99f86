"""Helpers of the differential tests: nsbox and bwrap side by side, and a model of workspace policies."""

import os

EXAMPLES = int(os.environ.get("NSBOX_EXAMPLES", "150"))
"""How many examples a property is tried with; NSBOX_EXAMPLES=5000 for a long search."""

PATIENCE = 300 + EXAMPLES
"""Seconds until a test here counts as hanging: far more than it takes, on a machine that does other things as well."""
