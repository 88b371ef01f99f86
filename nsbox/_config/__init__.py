"""A policy as a file: read, checked and written."""
