"""Audit: a record of each command that ran or was refused, as lines of JSON.

    nsbox.audit.to_file("/var/log/agent/audit.jsonl", max_bytes=10 << 20, backups=10, required=True)

Each record goes through the logger nsbox.audit of the standard library's logging. to_file() gives it a file that
rotates by size and that several processes may share. to_handler() takes any handler of the standard library, such as
TimedRotatingFileHandler or SysLogHandler. label() marks the records of a conversation or a tenant.
docs/howto/observability.md shows what records look like.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from nsbox._audit import redaction
from nsbox._audit.record import SCHEMA
from nsbox._audit.schema import schema
from nsbox._audit.sinks import AuditError, AuditFile, JsonFormatter
from nsbox._audit.trail import trail
from nsbox._base.checks import check_size, check_text
from nsbox._base.display import type_phrase
from nsbox._logs import observers
from nsbox._tools.arguments import check_flags

if TYPE_CHECKING:
    from nsbox._leaks.scrub import Value

__all__ = [
    "SCHEMA",
    "AuditError",
    "JsonFormatter",
    "close",
    "label",
    "lost",
    "redact",
    "schema",
    "to_file",
    "to_handler",
]

_LEAST = 64 << 10  # bytes: a few of the longest records
_MOST_LABEL = 200  # characters


def to_file(
    path: str | os.PathLike[str],
    *,
    max_bytes: int | str = 0,
    backups: int = 0,
    required: bool = False,
    sync: bool = False,
) -> None:
    """Append a record of each event to a file, from now on and in all threads, until close().

    path: the file. It is made with mode 0600. It must be yours, and commands must not be able to write to it: a policy
        that lets them is refused when it starts one.
    max_bytes: rename the file to PATH.1 before it gets larger than this; at least "64K". Default: 0, never.
    backups: how many such files to keep; at least 1 with max_bytes. Default: 0.
    required: True raises AuditError if a record can't be written, before the command starts. If the record of its end
        can't be written, wait() raises it once, with the command's returncode. A file tool has done its work by then.
        Default: False: the first loss is logged as an error, and lost() counts them.
    sync: True writes each record through to the disk (fdatasync(2)). Default: False.

    Raises OSError for a file that can't be opened, or that others could write to; TypeError, ValueError, PolicyError.
    """
    name = os.path.abspath(check_text("path", os.fspath(path)))
    check_flags(required=required, sync=sync)
    most = 0 if max_bytes == 0 and not isinstance(max_bytes, bool) else check_size("max_bytes", max_bytes)
    if isinstance(backups, bool) or not isinstance(backups, int) or not 0 <= backups <= 1000:
        raise ValueError(f"backups is {backups!r:.60}, must be a number from 0 to 1000")
    if most and most < _LEAST:
        raise ValueError(f"max_bytes is {max_bytes!r}, must be 0 or at least {_LEAST}")
    if bool(most) != bool(backups):
        raise ValueError("max_bytes and backups go together: without backups, rotating would drop all records")
    trail.attach(AuditFile(name, most, backups, sync=sync), is_required=required)


def to_handler(handler: logging.Handler, *, required: bool = False) -> None:
    """Send a record of each event to a handler, from now on, until close().

    handler: any of the standard library's. It gets a JsonFormatter until close(). What its emit() can't do counts as a
        failure; some, such as a SysLogHandler over UDP, don't notice one. If it waits, commands wait with it: put a
        QueueHandler in front.
    required: as for to_file().

    Raises TypeError, and ValueError for a handler that gets records already.
    """
    if not isinstance(handler, logging.Handler):
        raise TypeError(f"handler is {type_phrase(handler)}, must be a logging.Handler")
    check_flags(required=required)
    trail.attach(handler, is_required=required)


def close() -> None:
    """Close all files and handlers. Commands that start from now on have no records."""
    trail.detach()


@contextlib.contextmanager
def label(text: str) -> Iterator[None]:
    """Return a block, for `with`: records of what it starts, and of its file tools, have this `label`.

    It belongs to the context (contextvars): asyncio tasks that the block starts have it, as well as asyncio.to_thread()
    and AsyncSandbox. A thread of your own opens a block itself. A command keeps its label until its end, also after the
    block. In a block within another the inner one counts.

    text: at most 200 characters, such as a conversation's id. Raises ValueError.
    """
    check_text("text", text)
    if len(text) > _MOST_LABEL:
        raise ValueError(f"text has {len(text)} characters, must have at most {_MOST_LABEL}")
    token = observers.label.set(text)
    try:
        yield
    finally:
        observers.label.reset(token)


def lost() -> int:
    """Return how many records could not be written since the files and handlers that are open were given."""
    return trail.lost


def redact(values: Iterable[Value]) -> None:
    """Mask these values in all records from now on, also in base64, hex and percent-encoding.

    Tokens of known forms, passwords in URLs and values of options such as --password are masked anyway, and the secrets
    of a tool call in its own records. What a transaction commits, and the paths of file tools, aren't a call's own.

    values: str, bytes or Secret, each of at least four bytes. Raises TypeError and ValueError.
    """
    redaction.add(values)
