"""From a plan and a command to a running process, or an exception."""
