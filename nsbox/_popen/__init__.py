"""A command as a subprocess.Popen: its arguments, its terminal, its containment; and confined() and doctor()."""
