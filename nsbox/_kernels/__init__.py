"""Kernels: branches that stay, their calls, their forks."""
