"""Python code in branches: forks of a warm interpreter, each in namespaces of its own."""
