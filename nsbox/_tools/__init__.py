"""What the tools of an agent need: a command explained, and files within a policy's reach."""
