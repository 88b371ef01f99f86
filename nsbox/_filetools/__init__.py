"""Files within a policy's reach, as agents' tools use them: read, searched, and changed without being led elsewhere."""
