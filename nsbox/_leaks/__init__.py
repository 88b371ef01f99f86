"""Patterns of tokens and private keys, and the scrubber that replaces known secrets. Pure."""
