"""Helpers of the differential tests: nsbox and bwrap side by side, and a model of workspace policies."""
