"""What the tools of an agent need: what made a command fail, and what commands see."""
