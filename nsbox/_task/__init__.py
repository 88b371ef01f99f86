"""Tasks: sandboxes whose every directory is an overlay; what is in the overlays, and copies of it for snapshots."""
