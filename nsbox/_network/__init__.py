"""A network list as a wish, what it covers, and what happened under it: values and sentences. Pure."""
