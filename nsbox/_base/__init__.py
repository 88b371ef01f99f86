"""The base of every other package: errors, frozen values, checks, paths, descriptors. It knows nothing of sandboxes."""
