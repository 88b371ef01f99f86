"""The process that enforces a network list: its start, the requests to it, and its reports."""
