"""Asks this machine what it offers; the answers are a Host. Nothing is decided here."""
