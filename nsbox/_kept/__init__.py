"""What lives longer than one command: kept trees of mounts, their copies, and sessions."""
