"""Completion of the nsbox command for bash, zsh and fish, made of the pages about its subcommands (help/page.py)."""
