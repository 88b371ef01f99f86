"""macOS: how a profile confines a command, and how the command gets its own directory for temporary files.

This process compiles the profile, and the command applies it right before its exec. Compiling takes milliseconds, and a
whole Scheme interpreter. The profile has the path of the directory for temporary files in it. So it is compiled once
for each such directory, and the next command uses both again, after the directory has been removed and made afresh.
If libsandbox lacks the functions for that, the helper program does everything at each start, or else the system's
sandbox-exec(1).
"""

from __future__ import annotations

import errno
import os
import tempfile

from nsbox._base.descriptors import high
from nsbox._base.errors import AccessError, Reason, SetupError, UnavailableError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._core import buffers, darwin
from nsbox._core.abi import constants as c
from nsbox._core.command import Command
from nsbox._files.files import Tree, remove
from nsbox._plan.plan import Plan
from nsbox._plan.sbpl import Seatbelt, with_port
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from nsbox._core.abi import CData
    from nsbox._spawn.start import Named

_PREFIX = "nsbox-"
_MOST_KEPT = 64


class Place:
    """A directory for temporary files ("" for none), and the profile that has its path.

    port: of the proxy that the profile allows; 0: there is none.
    """

    __slots__ = ("compiled", "params", "path", "port", "profile")

    def __init__(
        self, path: str, params: tuple[tuple[bytes, bytes], ...], profile: bytes, port: int, compiled: CData | None
    ) -> None:
        self.path, self.params, self.profile, self.port, self.compiled = path, params, profile, port, compiled


class Places:
    """The places of one plan. One command uses each at a time. Threads may share it.

    If an earlier command left a process running outside its group, that process can reach what a later one keeps there.
    """

    def __init__(self, plan: Plan) -> None:
        (op,) = plan.ops
        assert isinstance(op, Seatbelt)
        self.op = op
        self._plan = plan
        self._free: list[Place] = []
        self._owner = os.getpid()
        self._only: Place | None = None  # one without a directory, which many commands may share

    def take(self, port: int = 0) -> Place:
        """Return a place with a fresh directory; raises SetupError or OSError. port: of its network list's proxy."""
        if not any(value is None for _, value in self.op.params):
            if self._only is None or self._only.port != port:
                self._only = self._made("", port)
            return self._only
        while (place := self._reused()) is not None:
            if place.port != port:  # that of a proxy that has ended
                continue
            try:
                os.mkdir(place.path, 0o700)
            except FileExistsError:  # not ours
                continue
            return place
        directory = os.path.dirname(self._plan.tmpdir)
        _sweep(directory)
        path = tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=directory)
        try:
            return self._made(path, port)
        except BaseException:
            os.rmdir(path)
            raise

    def _reused(self) -> Place | None:
        if self._owner != os.getpid():  # a forked child: they are the parent's
            self._free, self._owner = [], os.getpid()
        try:
            return self._free.pop()
        except IndexError:
            return None

    def _made(self, path: str, port: int) -> Place:
        params = tuple((k.encode(), os.fsencode(path if v is None else v)) for k, v in self.op.params)
        profile = with_port(self.op.profile, port).encode()
        if self.op.way != "compiled":
            return Place(path, params, profile, port, None)
        try:
            return Place(path, params, profile, port, darwin.compile(profile, params))
        except ValueError as error:
            raise SetupError(errno.EINVAL, "compile the profile", self.op.describe(), str(error)) from None

    def give_back(self, place: Place) -> None:
        """Remove the directory with everything in it, and keep the rest for another command."""
        if not place.path or self._owner != os.getpid():
            return
        try:
            with Tree(os.path.dirname(place.path)) as above:
                remove(above, os.path.basename(place.path))
        except (OSError, NotImplementedError):  # a process of the command goes on writing: leave it to the system
            return
        if len(self._free) < _MOST_KEPT:
            self._free.append(place)


_swept: set[tuple[int, str]] = set()


def _sweep(directory: str) -> None:
    """Remove, once, what killed callers have left."""
    key = (os.getpid(), directory)
    if key in _swept:
        return
    _swept.add(key)
    with Tree(directory) as above:
        for name in os.listdir(above.fd):
            pid = name.removeprefix(_PREFIX).partition("-")[0]
            if not name.startswith(_PREFIX) or not pid.isdigit() or _is_alive(int(pid)):
                continue
            try:
                if os.lstat(name, dir_fd=above.fd).st_uid == os.geteuid():
                    remove(above, name)
            except (OSError, NotImplementedError):  # this one resists; go on with the others
                continue


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except (PermissionError, OverflowError):
        pass
    return True


# ---- a command


def check_directory(policy: Policy, op: Seatbelt, path: str, own: str) -> None:
    """Raise AccessError for a directory that the command couldn't see: it would start there nonetheless.

    own: the kernel's name for it.
    """
    around = [(value, name) for name, value in op.params if value is not None and is_below(own, value)]
    name = max(around, key=lambda pair: len(pair[0]), default=("", "DENY"))[1]
    if name.startswith("DENY") and own != "/" and os.path.isdir(path):  # the root's names can be read
        inside = ", ".join((*policy.write, *policy.read))
        raise AccessError(path, f"is not in the sandbox; readable there, besides the system: {inside}")


def confine(plan: Plan, place: Place, command: Command, program: Named) -> None:
    """Change a command so that its start confines it."""
    (op,) = plan.ops
    assert isinstance(op, Seatbelt)
    if place.path:
        # HOME is the same directory if the home is to be empty.
        own = {name + os.fsencode(plan.tmpdir): name + os.fsencode(place.path) for name in (b"TMPDIR=", b"HOME=")}
        command.envp = buffers.Strings([own.get(entry, entry) for entry in command.envp.items])
    line = command.line
    if line is not None and not line.is_later:
        own = {os.fsencode(name): os.fsencode(value) for name, value in line.environment.items()}
        others = [entry for entry in command.envp.items if entry.partition(b"=")[0] not in own]
        command.envp = buffers.Strings([*others, *(name + b"=" + value for name, value in own.items())])
    if op.way != "compiled" and command.preexec is not None:
        raise UnavailableError(Reason(f"seatbelt: preexec_fn would be called outside of the sandbox ({op.way})"))
    for_helper = -1
    if op.way == "helper":
        for_helper = _instructions(place, command)
    elif op.way == "sandbox-exec":
        _by_program(place, command, program)
    flags = c.UNCONFINED if op.way == "sandbox-exec" else 0  # that program confines it
    flags |= c.LIFELINE | (c.LIFELINE_GROUP if plan.new_session else 0) | (0 if plan.kill_on_exit else c.STAY)
    read, write = os.pipe()
    pipe = high(read), high(write)
    command.profile = darwin.Profile(place.compiled, os.fsencode(darwin.HELPER), for_helper, flags, pipe)


def _instructions(place: Place, command: Command) -> int:
    """Return a file with what the helper has to know.

    Arguments won't do, since other processes can see them; nor will an environment, since the helper's own loader would
    obey it (DYLD_INSERT_LIBRARIES).
    """
    flat = [part for pair in place.params for part in pair]
    lists = ([place.profile, *flat], command.programs, command.argv, command.envp.items)
    texts = [b"nsbox 1"]
    for items in lists:
        texts += [str(len(items)).encode(), *items]
    with tempfile.TemporaryFile(buffering=0, dir=os.path.dirname(place.path) or None) as file:
        view = memoryview(b"".join(text + b"\0" for text in texts))
        while view:
            view = view[file.write(view) :]
        return high(os.dup(file.fileno()))


def _by_program(place: Place, command: Command, program: Named) -> None:
    """Make sandbox-exec(1) execute the command; raises OSError for a program that it couldn't execute."""
    path = next((path for path in command.programs if os.path.isfile(_at(command, path))), None)
    if path is None or not os.access(_at(command, path), os.X_OK):
        number = errno.ENOENT if path is None else errno.EACCES
        raise OSError(number, os.strerror(number), program)
    if command.argv and os.fsencode(program) != command.argv[0]:
        raise UnavailableError(Reason("seatbelt: executable= needs more than sandbox-exec, which can't set argv[0]"))
    defined = [part for key, value in place.params for part in (b"-D", key + b"=" + value)]
    command.argv = [b"sandbox-exec", b"-p", place.profile, *defined, _at(command, path), *command.argv[1:]]
    command.programs = [os.fsencode(darwin.PROGRAM)]


def _at(command: Command, path: bytes) -> bytes:
    return os.path.join(command.cwd or os.fsencode(os.getcwd()), path)
