"""From the paths that a policy is given to the paths that it means: patterns, links, HOME, and what git needs."""
