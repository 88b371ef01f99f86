"""What branches see mounted: overlays of what they may write to, and whether the rest is still what it was."""
