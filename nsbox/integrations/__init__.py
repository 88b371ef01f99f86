"""Adapters: nsbox in the frameworks people use, a module for each, which needs the extra of the same name."""
