"""How a command and its sandbox are awaited, signalled, killed and accounted for."""
