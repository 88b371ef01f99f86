"""What the tests of macOS's C core share: `driver`, which drives it in a process of its own, and `running`, which runs that."""
