"""What a command does in a transaction, and what the transaction says of it."""

from __future__ import annotations

from nsbox import Transaction


def sh(tx: Transaction, command: str) -> str:
    done = tx.shell(command)
    assert (done.returncode, done.stderr) == (0, "")
    return str(done.stdout)


def told(tx: Transaction) -> list[str]:
    return [str(change) for change in tx.diff()]
