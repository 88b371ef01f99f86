"""The only door to C: the library, requests, their bytes, and the calls."""
