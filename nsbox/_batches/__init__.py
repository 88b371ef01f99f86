"""Many snippets: a few run at the same time, and their results come as an iterator."""
