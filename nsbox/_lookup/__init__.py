"""What one policy needs to know of this machine: asked for each spawn, and added to the Host."""
