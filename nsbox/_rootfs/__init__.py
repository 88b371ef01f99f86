"""What a root file system consists of, and the policy for commands in it."""
