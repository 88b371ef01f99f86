"""A tool call: a command with bounded output and a time limit, watched or cancelled meanwhile, and the record of it."""
