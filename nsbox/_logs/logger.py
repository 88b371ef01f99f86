"""The logger nsbox of the standard library's logging, which is imported only for what somebody can read.

As a library's should, it has a NullHandler: a program that has set up nothing sees nothing. Two things are exceptions,
and go to standard error then: errors, and the warning that commands run uncontained. The nsbox command is another
exception: it shows all warnings.

While a program hasn't imported logging, nobody listens. So debug(), info() and warning() return at once.

Lean: functions import `logging` (13 ms).
"""

from __future__ import annotations

import sys

from nsbox._base.frozen import TYPE_CHECKING

if TYPE_CHECKING:
    from logging import Logger

NAME = "nsbox"
DEBUG, INFO, WARNING, ERROR = 10, 20, 30, 40  # logging's

_logger: Logger | None = None
_shown = ERROR  # the level from which on messages go to standard error if the program has no handler


def show_warnings() -> None:
    """Let warnings go to standard error too, if the program has no handler: for the nsbox command."""
    global _shown
    _shown = WARNING


def listens(level: int) -> bool:
    """Return whether a message of this level may be read by anybody."""
    logger = _logger
    if logger is None:
        if "logging" not in sys.modules:
            return False
        logger = _made()
    return logger.isEnabledFor(level)


def _made() -> Logger:
    global _logger
    import logging

    logger = logging.getLogger(NAME)
    if not logger.handlers:
        logger.addHandler(logging.NullHandler())
    _logger = logger
    return logger


def debug(text: str, *values: object) -> None:
    """Log what happens in detail: the start and the end of each command."""
    if listens(DEBUG):
        _log(DEBUG, text, values)


def info(text: str, *values: object) -> None:
    """Log what is made or ended besides commands, such as a warm interpreter."""
    if listens(INFO):
        _log(INFO, text, values)


def warning(text: str, *values: object, is_shown: bool = False) -> None:
    """Log what went wrong and was made up for. is_shown: show it even if the program has no handler."""
    if is_shown or _shown <= WARNING:
        _show(WARNING, text, values)
    elif listens(WARNING):
        _log(WARNING, text, values)


def error(text: str, *values: object) -> None:
    """Log what went wrong and can't be raised anywhere."""
    _show(ERROR, text, values)


def _log(level: int, text: str, values: tuple[object, ...], depth: int = 3) -> None:
    """Log it. A handler of the program's that raises breaks no command: its traceback goes to standard error."""
    try:
        _made().log(level, text, *values, stacklevel=depth)
    except Exception:
        import logging

        if logging.raiseExceptions:
            import traceback

            traceback.print_exc()


def _show(level: int, text: str, values: tuple[object, ...]) -> None:
    import logging

    logger = _made()
    _log(level, text, values, depth=4)
    if logging.lastResort is not None and not logger.disabled and logger.isEnabledFor(level) and not _has_handler():
        record = logger.makeRecord(NAME, level, "", 0, text, values, None)
        logging.lastResort.handle(record)


def has_handler() -> bool:
    """Return whether the program handles what is logged here."""
    return "logging" in sys.modules and _has_handler()


def _has_handler() -> bool:
    import logging

    logger: Logger | None = _made()
    while logger is not None:
        if any(not isinstance(handler, logging.NullHandler) for handler in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False
