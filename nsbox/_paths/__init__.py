"""From paths as users write them to the paths that a policy means: patterns, links, HOME, and what git needs."""
