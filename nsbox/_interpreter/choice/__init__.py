"""Which interpreter is made warm, and whether it can be: where commands can write to it."""
