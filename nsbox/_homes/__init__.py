"""nsbox's own directories of the user: the key, homes that are kept, and whether commands can reach them."""
