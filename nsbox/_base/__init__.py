"""What every other room stands on: errors, frozen values, checks, paths, descriptors. It knows nothing of sandboxes."""
