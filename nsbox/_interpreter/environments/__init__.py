"""Which interpreter is started for a policy, and with which packages, so that it runs nothing that commands write."""
