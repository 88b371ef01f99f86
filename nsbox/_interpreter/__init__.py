"""A warm interpreter for each policy, and the branches that are forked from it."""
