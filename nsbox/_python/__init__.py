"""Python code, contained: a warm interpreter for each policy, and branches of it, which run the code."""
