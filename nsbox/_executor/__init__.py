"""Calls of functions: what goes inside for one, and what comes back as a value or an exception."""
