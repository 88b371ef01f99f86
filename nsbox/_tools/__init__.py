"""What the tools of an agent need: a command run and explained, and what it sees."""
