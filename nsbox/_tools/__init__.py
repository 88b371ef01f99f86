"""What the tools of an agent need: a command run and explained, and files within a policy's reach."""
