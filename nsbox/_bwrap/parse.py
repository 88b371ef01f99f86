"""What a command line of bubblewrap asks for.

This module reads the options: their order, what each adds, which exclude each other, and the messages about mistakes.
What follows for the sandbox is up to the caller. The machine is asked nothing, with two exceptions: descriptors that
bubblewrap reads while it parses, and sources with a "..", which only the file system can resolve.
"""

from __future__ import annotations

import errno

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.lean_os import os
from nsbox._bwrap.asked import Asked, Refused, Usage, Version
from nsbox._bwrap.options import STRAY_LAYER, Option
from nsbox._bwrap.options import option as option_of
from nsbox._plan import ops
from nsbox._plan.capabilities import CAPABILITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import NoReturn

__all__ = ["Asked", "Refused", "Usage", "Version", "parse"]

_MAX_ARGS = 9000
_MAX_SIZE = 2**63 - 1
_MAX_INT = 2**31 - 1


def parse(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    read: Callable[[int], bytes],
    say: Callable[[str], None],
    cwd: str,
    real_uid: int,
    real_gid: int,
) -> Asked:
    """Return what a command line asks for; raises Refused, Usage or Version.

    argv: the words after the program's name. Surrogates stand for undecodable bytes (PEP 383), in messages too.
    read: returns what a descriptor holds, and closes it; or raises OSError. say: prints a warning.
    cwd: the directory that relative sources count from; "" if it is gone.
    """
    if not argv:
        raise Usage(1)
    line = _Line(environ, read, say, cwd)
    line.count(len(argv))
    line.command = tuple(line.take(argv, in_file=False))
    if line.layers:
        line.die(STRAY_LAYER)
    line.check_namespaces()
    if not line.command:
        raise Usage(1)
    line.check_needs(real_uid, real_gid)
    return line.asked()


def _number(text: str, base: int = 10) -> int | None:
    """Return the number that strtol(3) makes of a text; None if any of the text is left over. base 0: as in C."""
    digits = text.lstrip(" \t\n\v\f\r")
    sign = -1 if digits.startswith("-") else 1
    if digits[:1] in ("+", "-"):
        digits = digits[1:]
    if base == 0:
        base = 16 if digits[:2] in ("0x", "0X") else 8 if digits.startswith("0") else 10
        digits = digits[2:] if base == 16 else digits
    if not digits or any(digit not in "0123456789abcdef"[:base] for digit in digits.lower()):
        return None
    return sign * int(digits.lstrip("0")[:30] or "0", base)  # thirty digits are already too large for any use


class _Line:
    """A command line while it is being read."""

    def __init__(
        self, environ: Mapping[str, str], read: Callable[[int], bytes], say: Callable[[str], None], cwd: str
    ) -> None:
        self.read, self.say, self.cwd = read, say, cwd
        self.command: tuple[str, ...] = ()
        self.counted = 0
        self.env = dict(environ)
        self.ops: list[ops.Op] = []
        self.unshare: set[str] = set()
        self.attempts: set[str] = set()
        self.flags: set[str] = set()
        self.numbers: dict[str, int] = {}
        self.texts: dict[str, str] = {}
        self.lock_files: list[str] = []
        self.filters: list[bytes] = []
        self.sources: dict[str, str] = {}
        self.capabilities: list[tuple[str, str]] = []
        self.fds: dict[int, None] = {}
        self.level_prefix = False
        # For the next op:
        self.perms: int | None = None
        self.size: int | None = None
        self.layers: list[str] = []

    # ---- reading

    def count(self, more: int) -> None:
        self.counted += more
        if self.counted > _MAX_ARGS:
            self.die(f"Exceeded maximum number of arguments {_MAX_ARGS}")

    def take(self, words: Sequence[str], in_file: bool) -> Sequence[str]:
        """Carry out the options one by one; return the words after them."""
        at = 0
        while at < len(words):
            word = words[at]
            if word == "--":
                return self.passable(words[at + 1 :])
            option = option_of(word)
            if option is None:
                if word.startswith("-"):
                    self.die(f"Unknown option {word}")
                return self.passable(words[at:])
            args = words[at + 1 : at + 1 + len(option.args)]
            if option.kind == "args" and in_file:
                self.die("--args not supported in arguments file")
            if len(args) < len(option.args):
                self.die(option.shortage)
            try:
                _HANDLERS[option.kind](self, option, *self.passable(args))
            except PolicyError as error:
                self.die(f"{word}: {error.problem}")
            self.check_used_up(option)
            at += 1 + len(args)
        return ()

    def passable(self, words: Sequence[str]) -> Sequence[str]:
        """Return the words if all can be passed to the kernel, as all words of a real command line can."""
        for word in words:
            try:
                if b"\0" not in os.fsencode(word):
                    continue
            except UnicodeEncodeError:
                pass
            self.die(f"Invalid argument {word!r}")
        return words

    def die(self, problem: str) -> NoReturn:
        raise Refused(f"{'<3>' if self.level_prefix else ''}bwrap: {problem}")

    def warn_if(self, repeated: bool, option: Option) -> None:
        if repeated:
            self.say(f"{'<4>' if self.level_prefix else ''}bwrap: Only the last {option.name} option will take effect")

    def fd(self, text: str) -> int:
        number = _number(text)
        if number is None or not 0 <= number <= _MAX_INT:
            self.die(f"Invalid fd: {text}")
        self.fds[number] = None
        return number

    def contents(self, text: str, what: str) -> bytes:
        fd = self.fd(text)
        del self.fds[fd]
        try:
            return self.read(fd)
        except OSError as error:
            self.die(f"Can't read {what} data: {error.strerror}")

    def source(self, path: str, optional: bool = False) -> str:
        """Return an absolute path; "" for a -try option's path that doesn't exist.

        The kernel follows links in it, as for all ops. Only "..", which no op accepts, is resolved here.
        """
        joined = path if path.startswith("/") else f"{self.cwd.rstrip('/')}/{path}"
        try:
            if not path or not (path.startswith("/") or self.cwd):  # empty, or relative to a directory that is gone
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            source = os.path.realpath(joined, strict=True) if ".." in joined.split("/") else joined
            self.sources[source] = path
            return source
        except OSError as error:
            if optional and error.errno == errno.ENOENT:
                return ""
            self.die(f"Can't find source path {path}: {error.strerror}")

    # ---- the options, by their kinds

    def help(self, option: Option) -> None:
        raise Usage(0)

    def version(self, option: Option) -> None:
        raise Version

    def args(self, option: Option, fd: str) -> None:
        words = self.contents(fd, "--args").split(b"\0")
        if not words[-1]:
            words.pop()  # a NUL may end each word, or separate the words
        self.count(len(words))
        self.take([os.fsdecode(word) for word in words], in_file=True)  # like bwrap, ignore a command in there

    def prefix(self, option: Option) -> None:
        self.level_prefix = True

    def argv0(self, option: Option, value: str) -> None:
        if option.name in self.texts:
            self.die("--argv0 used multiple times")
        self.texts[option.name] = value

    def text(self, option: Option, value: str) -> None:
        self.warn_if(option.name in self.texts, option)
        self.texts[option.name] = value

    def flag(self, option: Option) -> None:
        self.flags.add(option.name)

    def new(self, option: Option) -> None:
        self.unshare.add(option.name.removeprefix("--unshare-"))

    def attempt(self, option: Option) -> None:
        self.attempts.add(option.name.removeprefix("--unshare-").removesuffix("-try"))

    def new_all(self, option: Option) -> None:
        self.unshare |= {"ipc", "pid", "net", "uts"}
        self.attempts |= {"user", "cgroup"}

    def share_net(self, option: Option) -> None:
        self.unshare.discard("net")

    def one_fd(self, option: Option, fd: str) -> None:
        self.warn_if(option.name in self.numbers, option)
        self.numbers[option.name] = self.fd(fd)

    def one_id(self, option: Option, text: str) -> None:
        self.warn_if(option.name in self.numbers, option)
        number = _number(text)
        if number is None or not 0 <= number <= _MAX_INT:
            self.die(f"Invalid {option.name[2:]}: {text}")
        self.numbers[option.name] = number

    def hostname(self, option: Option, name: str) -> None:
        self.warn_if(option.name in self.texts, option)
        self.texts[option.name] = name
        self.ops.append(ops.Hostname(name))

    def clearenv(self, option: Option) -> None:
        self.env.clear()

    def setenv(self, option: Option, name: str, value: str) -> None:
        if not name or "=" in name:
            self.die("setenv failed")
        self.env[name] = value

    def unsetenv(self, option: Option, name: str) -> None:
        if not name or "=" in name:
            self.die("unsetenv failed")
        self.env.pop(name, None)

    def lock_file(self, option: Option, path: str) -> None:
        self.lock_files.append(path)

    def bind(self, option: Option, src: str, dest: str) -> None:
        optional = option.name.endswith("-try")
        path = self.source(src, optional)
        if path:
            self.ops.append(_BINDS[option.name.removesuffix("-try")](path, _inside(dest), optional))

    def bind_fd(self, option: Option, fd: str, dest: str) -> None:
        self.ops.append(ops.BindFd(self.fd(fd), _inside(dest), read_only=option.name == "--ro-bind-fd"))

    def mount(self, option: Option, dest: str) -> None:
        self.ops.append(_MOUNTS[option.name](_inside(dest)))

    def tmpfs(self, option: Option, dest: str) -> None:
        size, self.size = self.size, None
        self.ops.append(ops.Tmpfs(_inside(dest), size, self.mode(0o755)))

    def dir(self, option: Option, dest: str) -> None:
        self.ops.append(ops.Dir(_inside(dest), self.mode(0o755)))

    def file(self, option: Option, fd: str, dest: str) -> None:
        self.ops.append(ops.File(_inside(dest), self.fd(fd), self.mode(0o666)))

    def bind_data(self, option: Option, fd: str, dest: str) -> None:
        read_only = option.name == "--ro-bind-data"
        self.ops.append(ops.BindData(_inside(dest), self.fd(fd), self.mode(0o600), read_only))

    def symlink(self, option: Option, target: str, dest: str) -> None:
        self.ops.append(ops.Symlink(target, _inside(dest)))

    def chmod(self, option: Option, mode: str, path: str) -> None:
        bits = self.octal(option, mode)
        self.ops.append(ops.Chmod(_inside(path), bits))

    def overlay_src(self, option: Option, src: str) -> None:
        self.layers.append(src)

    def overlay(self, option: Option, *paths: str) -> None:
        least, number = (2, "two") if option.name == "--ro-overlay" else (1, "one")
        if len(self.layers) < least:
            self.die(f"{option.name} requires at least {number} --overlay-src")
        lower, self.layers = tuple(map(self.source, self.layers)), []
        dest = _inside(paths[-1])
        if option.name == "--overlay":
            upper, work = map(self.source, paths[:2])
            self.ops.append(ops.Overlay(lower, dest, upper, work))
        else:
            self.ops.append((ops.RoOverlay if option.name == "--ro-overlay" else ops.TmpOverlay)(lower, dest))

    def seccomp(self, option: Option, fd: str) -> None:
        if self.filters:
            self.die("--seccomp cannot be combined with --add-seccomp-fd")
        self.one_fd(option, fd)

    def add_seccomp_fd(self, option: Option, fd: str) -> None:
        if "--seccomp" in self.numbers:
            self.die("--add-seccomp-fd cannot be combined with --seccomp")
        data = self.contents(fd, "seccomp")
        if len(data) % 8:
            self.die("Invalid seccomp data, must be multiple of 8")
        self.filters.append(data)

    def cap(self, option: Option, name: str) -> None:
        number = _number(name, 0)
        if number is not None and 0 <= number < len(CAPABILITIES):
            capability = CAPABILITIES[number]
        elif name.upper() in ("ALL", *CAPABILITIES):
            capability = name.upper()
        else:
            self.die(f"unknown cap: {name}")
        self.capabilities.append((option.name.removeprefix("--cap-"), capability))

    def next_perms(self, option: Option, mode: str) -> None:
        if self.perms is not None:
            self.die("--perms given twice for the same action")
        self.perms = self.octal(option, mode)

    def next_size(self, option: Option, text: str) -> None:
        if self.size is not None:
            self.die("--size given twice for the same action")
        size = _number(text, 0) if "0" <= text[:1] <= "9" else None
        if not size or size >= 2**64:
            self.die("--size takes a non-zero number of bytes")
        if size > _MAX_SIZE:
            self.die(f"--size (for tmpfs) is limited to {_MAX_SIZE}")
        self.size = size

    def octal(self, option: Option, text: str) -> int:
        mode = _number(text, 8)
        if mode is None or not 0 <= mode <= 0o7777:
            self.die(f"{option.name} takes an octal argument <= 07777")
        return mode

    def mode(self, default: int) -> int:
        """Return the mode for an op; this uses up --perms."""
        mode, self.perms = self.perms, None
        return default if mode is None else mode

    # ---- what must go together

    def check_used_up(self, option: Option) -> None:
        """Refuse an option that stands between --perms, --size or --overlay-src and the option that they modify."""
        if option.kind not in ("perms", "size"):
            if self.perms is not None:
                self.die("--perms must be followed by an option that creates a file")
            if self.size is not None:
                self.die("--size must be followed by --tmpfs")
        if option.kind != "overlay-src" and self.layers:
            self.die(STRAY_LAYER)

    def check_namespaces(self) -> None:
        """Refuse what bubblewrap refuses before it looks for a COMMAND; no user namespace is implied yet."""
        new_user = "user" in self.unshare
        blocks = "--userns-block-fd" in self.numbers
        if blocks and not new_user:
            self.die("--userns-block-fd requires --unshare-user")
        if blocks and "--info-fd" not in self.numbers:
            self.die("--userns-block-fd requires --info-fd")
        if "--userns" in self.numbers and new_user:
            self.die("--userns is not compatible with --unshare-user")
        if "--userns" in self.numbers and "user" in self.attempts:
            self.die("--userns is not compatible with --unshare-user-try")
        if "--disable-userns" in self.flags and not new_user:
            self.die("--disable-userns requires --unshare-user")
        if "--disable-userns" in self.flags and blocks:
            self.die("--disable-userns is not compatible with --userns-block-fd")

    def check_needs(self, real_uid: int, real_gid: int) -> None:
        """Refuse options without the namespace that they need. An attempt at a user namespace counts as one."""
        user = real_uid != 0 or "user" in self.unshare | self.attempts or "--userns" in self.numbers
        for name, real in (("--uid", real_uid), ("--gid", real_gid)):
            if not user and self.numbers.get(name, real) != real:
                self.die(f"Specifying {name} requires --unshare-user or --userns")
        if "--hostname" in self.texts and "uts" not in self.unshare:
            self.die("Specifying --hostname requires --unshare-uts")
        if "--as-pid-1" in self.flags and "pid" not in self.unshare:
            self.die("Specifying --as-pid-1 requires --unshare-pid")
        if "--as-pid-1" in self.flags and self.lock_files:
            self.die("Specifying --as-pid-1 and --lock-file is not permitted")

    def asked(self) -> Asked:
        flags, numbers, texts = self.flags, self.numbers, self.texts
        return Asked(
            command=self.command,
            env=self.env,
            sources=self.sources,
            ops=tuple(self.ops),
            unshare=frozenset(self.unshare),
            attempts=frozenset(self.attempts),
            userns=numbers.get("--userns"),
            userns2=numbers.get("--userns2"),
            pidns=numbers.get("--pidns"),
            uid=numbers.get("--uid"),
            gid=numbers.get("--gid"),
            disable_userns="--disable-userns" in flags,
            assert_userns_disabled="--assert-userns-disabled" in flags,
            chdir=texts.get("--chdir"),
            argv0=texts.get("--argv0"),
            lock_files=tuple(self.lock_files),
            sync_fd=numbers.get("--sync-fd"),
            info_fd=numbers.get("--info-fd"),
            json_status_fd=numbers.get("--json-status-fd"),
            block_fd=numbers.get("--block-fd"),
            userns_block_fd=numbers.get("--userns-block-fd"),
            seccomp_fd=numbers.get("--seccomp"),
            filters=tuple(self.filters),
            exec_label=texts.get("--exec-label"),
            file_label=texts.get("--file-label"),
            new_session="--new-session" in flags,
            die_with_parent="--die-with-parent" in flags,
            as_pid_1="--as-pid-1" in flags,
            capabilities=tuple(self.capabilities),
            level_prefix=self.level_prefix,
            fds=tuple(self.fds),
        )


def _inside(path: str) -> str:
    """Return a destination as an absolute path in the sandbox; bubblewrap takes every destination as absolute."""
    return "/" + path.lstrip("/")


_BINDS: dict[str, type[ops.Bind | ops.RoBind | ops.DevBind]] = {
    "--bind": ops.Bind,
    "--ro-bind": ops.RoBind,
    "--dev-bind": ops.DevBind,
}
_MOUNTS: dict[str, Callable[[str], ops.Op]] = {
    "--remount-ro": ops.RemountRo,
    "--proc": ops.Proc,
    "--dev": ops.Dev,
    "--mqueue": ops.Mqueue,
}

_HANDLERS: dict[str, Callable[..., None]] = {
    "help": _Line.help,
    "version": _Line.version,
    "args": _Line.args,
    "argv0": _Line.argv0,
    "level-prefix": _Line.prefix,
    "unshare-all": _Line.new_all,
    "share-net": _Line.share_net,
    "unshare": _Line.new,
    "attempt": _Line.attempt,
    "fd": _Line.one_fd,
    "flag": _Line.flag,
    "id": _Line.one_id,
    "hostname": _Line.hostname,
    "text": _Line.text,
    "clearenv": _Line.clearenv,
    "setenv": _Line.setenv,
    "unsetenv": _Line.unsetenv,
    "bind": _Line.bind,
    "bind-fd": _Line.bind_fd,
    "mount": _Line.mount,
    "overlay-src": _Line.overlay_src,
    "overlay": _Line.overlay,
    "tmpfs": _Line.tmpfs,
    "dir": _Line.dir,
    "file": _Line.file,
    "bind-data": _Line.bind_data,
    "symlink": _Line.symlink,
    "perms": _Line.next_perms,
    "size": _Line.next_size,
    "chmod": _Line.chmod,
    "seccomp": _Line.seccomp,
    "add-seccomp-fd": _Line.add_seccomp_fd,
    "cap": _Line.cap,
    "lock-file": _Line.lock_file,
}
