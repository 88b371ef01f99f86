"""Which file system a policy means, op by op, for every backend that mounts. Pure."""
