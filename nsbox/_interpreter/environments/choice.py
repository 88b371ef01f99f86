"""Chooses the warm interpreter, so that it runs no code from files that the policy's commands can change.

It has more rights than they have. Its own program and library must be out of their reach. If they can write to the
packages, such as those of a virtual environment in the workspace, it is started without these; each branch adds them
when it has no rights any more.
"""

from __future__ import annotations

import os
import re
import stat
import sys

from nsbox._base.display import printable
from nsbox._base.errors import AccessError, InterpreterError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, frozen, remembered, replace
from nsbox._base.paths import is_below
from nsbox._interpreter.environments.places import Places
from nsbox._interpreter.environments.report import report
from nsbox._interpreter.executable import executable
from nsbox._interpreter.warm import possible
from nsbox._lookup.host import host_for
from nsbox._spawn.prepare import prepare
from nsbox._tools.view import view

if TYPE_CHECKING:
    from collections.abc import Iterable

    from nsbox._interpreter.environments.report import Report
    from nsbox._interpreter.program import Wish
    from nsbox._policy.policy import Policy
    from nsbox._spawn.prepare import Prepared

# What of the environment makes a program load code, and what parts the paths in it; "": it is one path. From ld.so(8),
# iconv(1), config(5ssl), and musl's ldso/dynlink.c. The other modules of Python are isolated.
_LOADING = {
    **dict.fromkeys(("LD_PRELOAD", "LD_AUDIT"), r"[:\s]"),
    "LD_LIBRARY_PATH": r"[:;\n]",
    "GCONV_PATH": ":",
    **dict.fromkeys(("OPENSSL_CONF", "OPENSSL_ENGINES", "OPENSSL_MODULES"), ""),
}
_BY_NAME = ("LD_PRELOAD", "LD_AUDIT")  # a name without a slash is looked for where libraries are
_NAME = re.compile(r"(python|pypy)(\d+(\.\d+)*)?[a-z]{0,2}")
_MOST_CONFIG = 1 << 16
_WRITE = "where this policy's commands can write"


@frozen
class Choice(Frozen):
    """What is started.

    program: its path.
    executable: what sys.executable is for the code: often a virtual environment's link to the program.
    regions: see Places; empty if commands have the interpreter's rights anyway.
    why_cold: why each branch adds the packages, and does the imports and the setup; "" if the interpreter does.
    """

    program: str
    executable: str
    regions: tuple[tuple[str, bool], ...] = ()
    why_cold: str = ""


class OpenError(InterpreterError):
    """What an interpreter has imported is open to commands. why: as Choice.why_cold. Users never see it."""

    def __init__(self, path: str) -> None:
        """Make it. path: the file that was refused."""
        super().__init__("import", path, f"it lies {_WRITE}")
        self.why = f"the imports or the setup load {path}, {_WRITE}"


def choose(policy: Policy, prepared: Prepared, wish: Wish) -> Choice:
    """Return what is started for a policy. Raises InterpreterError, and what starting a command raises."""
    possible(policy, prepared.plan)
    chosen = executable(policy, wish.python)
    if policy.base == "host":  # its commands can make namespaces themselves, and nothing keeps files from them
        return Choice(chosen, "")
    places = Places(view(policy))
    if places.regions["/"]:
        raise InterpreterError("start", chosen, f"it lies in /, {_WRITE}; show the system read-only: RoBind('/', '/')")
    if "/" not in chosen:
        chosen = _found(policy, prepared, chosen)
    _check_loading(prepared, places)
    env, opening = _environment(places, chosen)
    start = _base(policy, prepared, places, chosen) if opening else chosen
    said = _asked(policy, start, wish.start_timeout)
    _check(places, start, said)
    regions = tuple(places.regions.items())
    if opening:
        return Choice(
            said.program if said.executable == start else said.executable, chosen, regions, _why(env, opening)
        )
    for path in said.path:
        opening = places.opening_in(path)
        if opening:
            return Choice(said.executable, said.executable, regions, _why(path, opening))
    return Choice(said.executable, said.executable, regions)


def cold(choice: Choice, why: str) -> Choice:
    """Return a choice whose branches do everything."""
    return replace(choice, why_cold=why)


def _why(path: str, opening: str) -> str:
    where = "there" if path == opening else f"in {opening}"
    text = f"packages come from {path}, and this policy's commands can write {where}, so each run imports them itself"
    return printable(f"{text}: read=[{path!r}] in the policy makes it fast")


@remembered
def _remembered(policy: Policy, start: str, timeout: float) -> Report:
    prepared = prepare(policy, host_for(policy))
    return report(policy, prepared, Places(view(policy)).regions, start, timeout)


def _asked(policy: Policy, start: str, timeout: float) -> Report:
    return _remembered(policy, start, timeout)


# ---- the program


def _found(policy: Policy, prepared: Prepared, name: str) -> str:
    """Return the path of a program that is looked for in PATH."""
    seen = view(policy)
    for directory in prepared.environment.directories():
        path = os.path.join(directory, name)
        if path.startswith("/"):
            place, problem = seen.problem(path, write=False)
            if not problem and place.here and os.path.isfile(place.here) and os.access(place.here, os.X_OK):
                return path
    raise InterpreterError("start", name, "No such file in PATH; python= chooses another interpreter")


def _environment(places: Places, chosen: str) -> tuple[str, str]:
    """Return the environment of an interpreter, and where commands can write on the way to it; "": nowhere."""
    directory = os.path.dirname(chosen)
    prefix = os.path.dirname(directory)
    for path in (chosen, directory, *((prefix,) if prefix != "/" else ())):  # pyvenv.cfg stands in one of the two
        opening = places.opening(path)
        if opening:
            return prefix, opening
    return prefix, ""


def _base(policy: Policy, prepared: Prepared, places: Places, chosen: str) -> str:
    """Return the interpreter that an environment is made from.

    Commands can write to the environment, so they may have chosen it. It counts only if nsbox would take it without
    them: the caller's own, or one in PATH.
    """
    inside = view(policy).place(chosen).inside
    stranger = ""
    for path in (inside, *_homes(policy, chosen)):
        if not places.opening(path) and _NAME.fullmatch(os.path.basename(path)) and _is_program(policy, path):
            found = view(policy).place(path).inside
            if _is_known(prepared, found):
                return found
            stranger = stranger or found
    if stranger:
        text = f"{chosen} leads to it, {_WRITE}, and it is neither yours nor in PATH"
        raise InterpreterError("start", stranger, f"{text}; make the environment read-only, or name another by python=")
    opening = places.opening(inside) or places.opening(chosen)
    raise _open(inside, opening, "the interpreter itself")


def _is_known(prepared: Prepared, path: str) -> bool:
    own = (sys.executable, getattr(sys, "_base_executable", None))
    if any(one and os.path.realpath(one) == path for one in own):
        return True
    directories = prepared.environment.directories()
    return os.path.dirname(path) in {os.path.realpath(os.fsdecode(directory)) for directory in directories}


def _homes(policy: Policy, chosen: str) -> list[str]:
    """List where an environment's pyvenv.cfg says its interpreter is. A command may have written it."""
    names = dict.fromkeys((os.path.basename(chosen), "python3", "python"))
    for directory in (os.path.dirname(chosen), os.path.dirname(os.path.dirname(chosen))):
        for line in _config(policy, os.path.join(directory, "pyvenv.cfg")).splitlines():
            key, _, value = line.partition("=")
            home = value.strip()
            if key.strip().lower() == "home" and home.startswith("/") and "\0" not in home:
                return [f"{home.rstrip('/')}/{name}" for name in names]
    return []


def _config(policy: Policy, path: str) -> str:
    """Return what a small file says; "" if there is none. Whatever a command has put there, nothing waits for it."""
    try:
        place, problem = view(policy).problem(path, write=False)
        if problem or place.here is None:
            return ""
        fd = os.open(place.here, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, AccessError):
        return ""
    try:
        return os.read(fd, _MOST_CONFIG).decode("utf-8", "replace") if stat.S_ISREG(os.fstat(fd).st_mode) else ""
    except OSError:
        return ""
    finally:
        os.close(fd)


def _is_program(policy: Policy, path: str) -> bool:
    try:
        place, problem = view(policy).problem(path, write=False)
    except AccessError:
        return False
    return not problem and place.here is not None and os.path.isfile(place.here) and os.access(place.here, os.X_OK)


# ---- checks


def _open(path: str, opening: str, what: str) -> InterpreterError:
    directory = os.path.dirname(path)
    tree = os.path.dirname(directory) if os.path.basename(directory) in ("bin", "lib", "lib64") else path
    remedy = f"make it read-only, read=[{tree!r}], or name another by python="
    return InterpreterError("start", path, f"{what} lies in {printable(opening)}, {_WRITE}; {remedy}")


def _check(places: Places, start: str, said: Report) -> None:
    """Raise InterpreterError if commands can change the program or its own library, or put another in their way."""
    for path in (start, said.executable, said.program, *_above(said)):
        opening = places.opening(path)
        if opening:
            raise _open(path, opening, "the interpreter itself")
    for path in said.own:
        opening = places.opening_in(path)
        if opening:
            raise _open(path, opening, "the interpreter's own library")


def _above(said: Report) -> Iterable[str]:
    """Yield the directories in which Python looks for its library, beginning at the program (getpath.py)."""
    path = said.home or os.path.dirname(said.program)
    yield path
    while path != "/":
        path = os.path.dirname(path)
        yield path
        if is_below(said.prefix, path):
            break


def _check_loading(prepared: Prepared, places: Places) -> None:
    """Raise InterpreterError if a variable of the environment has the program load what commands can write to."""
    variables = prepared.environment.variables(dict(os.environ))
    for name, parting in _LOADING.items():
        value = variables.get(name, "")
        if not value:
            continue
        for path in re.split(parting, value) if parting else (value,):
            if path and "/" not in path and name in _BY_NAME:
                continue
            if not path.startswith("/") or ("$" in path and parting):  # ld.so(8) expands $ORIGIN
                text = f"{name} has {printable(path) or 'an empty path'}, and it isn't known where that leads"
            elif opening := places.opening(path):
                text = f"{name} leads to {printable(path)}, in {printable(opening)}, {_WRITE}"
            else:
                continue
            raise InterpreterError("start", name, f"{text}; leave it out of the environment")
