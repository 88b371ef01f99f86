"""What a transaction keeps, shows, and brings into the workspace."""
