"""Which system calls a command may make: the wish, the profiles with their reasons, and the assembler. Pure."""
