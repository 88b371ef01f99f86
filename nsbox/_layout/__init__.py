"""Which file system a policy means, op by op, whoever mounts it: shared by the backends. Pure."""
