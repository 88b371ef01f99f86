"""Policy: what a command may read, write, reach and use up, as a frozen, hashable, picklable value.

Everything that a user may wish for is here, and the checks that the wishes make sense together. What a wish means on a
given machine is up to a backend.

Lean: functions import `_network.network` (6 ms) and `rules`.
"""

from __future__ import annotations

import os

from nsbox._base.checks import (
    check_bool,
    check_choice,
    check_hostname,
    check_path,
    check_size,
    check_text,
    is_path_like,
    sequence,
)
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, fields, frozen_by_name, replace
from nsbox._base.paths import is_below
from nsbox._paths.home import PRIVATE, check_home
from nsbox._paths.patterns import hides, is_pattern
from nsbox._paths.resolution import Resolution
from nsbox._paths.workspace import changed, check_devices, check_links, workspace
from nsbox._plan.ops import OPS, Hostname, Loopback, Mqueue, Op, Proc
from nsbox._policy.details import NO_DETAILS, Details
from nsbox._policy.limits import Limits
from nsbox._policy.losses import losses
from nsbox._policy.questions import Questions
from nsbox._policy.variables import callers_variables, check_env, check_pass_env
from nsbox._seccomp.filter import PROFILES, Filter

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal, TypeAlias, Unpack

    from nsbox._network.network import Network
    from nsbox._policy.keywords import Changes, Layered, Wishes
    from nsbox._policy.rules import PathRule

    Path: TypeAlias = str | os.PathLike[str]

_ALWAYS = frozenset({"user", "mount", "pid"})
_MOST_PROCS = 8  # child.h
_OPTIONAL = frozenset({"ipc", "uts", "cgroup", "time"})
BACKENDS = ("namespaces", "bwrap", "seatbelt", "landlock", "passthrough")  # in this order: the first contains most
REQUIRE = {"isolated": 2, "filesystem": 4, "nothing": 5}  # how many of these are acceptable
PRESETS = ("fonts", "fsevents", "power", "preferences", "process-list", "tls")  # of _backends.seatbelt_rules
_BASES = ("workspace", "host", "layers")
_MAX_ID = 2**32 - 2  # 2**32 - 1 is "no id" to the kernel


def _check_id(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_ID:
        raise PolicyError(name, f"{value!r} isn't an id between 0 and {_MAX_ID}")
    return value


def _text(name: str, value: Any) -> str:
    return check_text(name, os.fspath(value) if is_path_like(value) else value)


def _names(name: str, value: object) -> frozenset[str]:
    return frozenset(check_text(name, item) for item in sequence(name, value))


@frozen_by_name
class Policy(Questions, Frozen):
    """What a command may read, write, reach and use up.

    Make one with workspace(), host() or layers(), and change it with with_(). PolicyError names a field that is wrong.
    Defaults are those of the signature, except where a constructor's own is given here.

    Files:
    base: which constructor made it: "workspace", "host" or "layers".
    workdir: where commands start unless they say otherwise, an absolute path; workspace(): the workspace.
    write, read, deny: absolute paths; workspace() only. The longest path that contains a file decides about it; on the
        same path deny wins.
    strict: everything that deny names or matches must exist, else PolicyError; workspace() only.
    links: pairs of a symlink on the way to one of these paths and its target, made inside too. workspace() finds them.
    devices: nodes below /dev, or directories of them, besides the usual ones; workspace() only.
    tmp_size: the most bytes, or such as "64M", in each tmpfs of the sandbox's own; None: half of the memory.
    ops: the ops that layers() got, in their order.
    paths: PathRules about names and sizes of files, which Sandbox.read() and the other methods for files obey.
    protected: names of files, in any case of letters, that Sandbox.write() never writes.
    symlinks: how those methods treat links in a path: "refuse", or "beneath" to follow those that stay in the directory
        that the policy names.

    Processes:
    limits: what the command may use up, a Limits.
    new_session: call setsid(2), so that there is no controlling terminal to type into (CVE-2017-5226). host() and
        layers(): False.
    kill_on_exit: kill what the command leaves running. False: that goes on in the sandbox until the caller ends at the
        latest, and wait() doesn't wait for it.
    nested: the command makes sandboxes itself (nsbox, bwrap, runc, Chromium); the calls for it are always allowed.
    tools_bin: a directory of programs, read-only inside and first in PATH.
    shell_path: the shell that shell() runs, as a path in the sandbox; None: bash if the sandbox has it, else /bin/sh.

    Identity:
    ids: "single" maps one uid and gid; "full" all of the caller's (needs CAP_SETUID and CAP_SETGID, or subuid(5));
        "auto", the default of host(): "full" with those capabilities, else "single".
    uid, gid: the command's inside; None: the caller's.
    hostname: None: the host's.
    home: HOME, an absolute path. A workspace also has "private" (its default: an empty directory of the sandbox's own,
        which a Sandbox keeps for its commands while it is open, if they may write anywhere), "private:NAME" (kept under
        that name, from one run to the next), "workspace" and "tmp".
    env: variables to set, a mapping or pairs.
    pass_env: names of variables that are taken from the caller's environment when a command starts.
    inherit_env: take the caller's whole environment. host() and layers(): True.

    Network:
    network: "none" (a net namespace with only lo), "host", or what may be connected to: entries, "public" or a Network.
        host(), and layers() without net in unshare: "host".
    unshare: namespaces besides user, mount and pid, which every sandbox has: "ipc", "uts", "cgroup", "time".

    Enforcement:
    seccomp: which system calls are allowed: "default" (workspace() and host()), "hardened", "off" (refuses only calls
        that reach the caller), or a Filter.
    landlock: also enforce rules about files with Landlock, behind the mounts; each open(2) takes about a third longer.
    backend: "namespaces", "bwrap", "seatbelt" (macOS), "landlock", "passthrough", or "auto": the first that works here.
    require: the weakest containment to accept: "isolated" (namespaces, bwrap), "filesystem" (the contents of files;
        seatbelt and landlock too), or "nothing" (even passthrough, which contains nothing and warns once).
    degrade: what may be lost if the backend can't grant it, instead of an UnavailableError: names of LOSSES, or a level
        of LEVELS, which the value spells out. It changes nothing where nothing has to be lost, and never which backends
        are acceptable. print() says in one line what may be lost. With require="nothing", everything may.
    seatbelt: what else commands may ask of macOS, such as "tls" for programs that let the system check certificates
        (Go); see PRESETS. No effect elsewhere.
    details: what only layers() can ask for, a Details.
    """

    base: Literal["workspace", "host", "layers"] = "layers"
    workdir: str | None = None
    write: tuple[str, ...] = ()
    read: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    ops: tuple[Op, ...] = ()
    network: Literal["none", "host", "public"] | list[str] | tuple[str, ...] | Network = "none"
    unshare: frozenset[str] = frozenset({"user", "mount", "pid", "ipc", "uts", "cgroup"})
    tmp_size: int | str | None = None
    limits: Limits = Limits()
    ids: Literal["single", "full", "auto"] = "single"
    uid: int | None = None
    gid: int | None = None
    hostname: str | None = None
    home: str | None = None
    env: tuple[tuple[str, str], ...] | Mapping[str, str] = ()
    pass_env: tuple[str, ...] = ()
    inherit_env: bool = False
    new_session: bool = True
    seccomp: Literal["default", "hardened", "off"] | Filter = "off"
    landlock: bool = False
    backend: Literal["auto", "namespaces", "bwrap", "seatbelt", "landlock", "passthrough"] = "auto"
    require: Literal["isolated", "filesystem", "nothing"] = "filesystem"
    degrade: frozenset[str] = frozenset()
    nested: bool = False
    kill_on_exit: bool = True
    details: Details = NO_DETAILS
    tools_bin: str | None = None
    shell_path: str | None = None
    paths: tuple[PathRule, ...] = ()
    protected: tuple[str, ...] = ()
    symlinks: Literal["refuse", "beneath"] = "refuse"
    seatbelt: frozenset[str] = frozenset()
    strict: bool = False
    devices: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()
    _patterns: bool = field(init=False, repr=False, compare=False, default=False)
    _hash: int = field(init=False, repr=False, compare=False, default=0)

    # ---- making one

    @classmethod
    def workspace(
        cls,
        path: Path,
        *,
        read: Iterable[Path] = (),
        write: Iterable[Path] = (),
        deny: Iterable[Path] = (),
        read_only: bool = False,
        **fields: Unpack[Wishes],
    ) -> Policy:
        """Return the policy for work in one directory, which is readable and writable at its own path.

        System directories and the running interpreter are readable; secrets of the host are masked. /tmp is private,
        the network is off, and the environment is built from scratch. Relative paths count from the current directory.

        path: the workspace, a directory other than "/". A home directory, or one around it, must be in write too.
        read: more that is readable, and patterns of such (*, ?, [...], **), which are looked up at each spawn.
        write: more that is writable.
        deny: what is masked, paths or patterns; it need not exist.
        read_only: make the workspace readable only. What write names inside of it stays writable.
        fields: more fields of Policy. tools_bin is readable too.

        Raises PolicyError for a path that doesn't exist (except in deny), and for one that a command can have
        redirected by a symlink.
        """
        lists = {"read": read, "write": write, "deny": deny}
        return _workspace(cls, Resolution(), path, {**fields, **lists, "read_only": read_only})

    @classmethod
    def host(cls, **fields: Unpack[Wishes]) -> Policy:
        """Return the policy that contains least: the whole file system writable, host network, inherited environment.

        What remains: a pid namespace of its own (so nothing survives the command), no capabilities, no new privileges,
        and the default seccomp profile without its rules about namespaces and mounts (so sandboxes can be made inside).
        Meant for migration, and for tests of parity with the standard library.

        fields: more fields of Policy. Raises PolicyError.
        """
        defaults: dict[str, Any] = {
            "network": "host",
            "unshare": _ALWAYS,
            "ids": "auto",
            "inherit_env": True,
            "new_session": False,
            "seccomp": "default",
        }
        return cls(base="host", **(defaults | _check_wishes({**fields})))

    @classmethod
    def layers(cls, *ops: Op, unshare: Iterable[str] = (), **fields: Unpack[Layered]) -> Policy:
        """Return a policy that is just these ops, in this order, on an empty root: the control that bwrap gives.

        ops: the steps, such as RoBind("/usr", "/usr").
        unshare: namespaces besides user, mount and pid: any of ipc, uts, cgroup, net, time.
        fields: more fields of Policy. Unless they say otherwise, the environment is inherited, as with bwrap.

        Raises PolicyError.
        """
        names = _names("unshare", unshare)
        if "net" in names and fields.get("network") == "host":
            raise PolicyError("network", "is 'host', but unshare has net")
        defaults: dict[str, Any] = {
            "network": "none" if "net" in names else "host",
            "inherit_env": True,
            "new_session": False,
        }
        return cls(
            base="layers", ops=ops, unshare=(names - {"net"}) | _ALWAYS, **(defaults | _check_wishes({**fields}))
        )

    def with_(self, **fields: Unpack[Changes]) -> Policy:
        """Return a copy with these fields changed; raises PolicyError as the constructors do.

        fields: more fields of Policy. In a workspace policy, paths in read, write and deny are treated as by
        workspace(): relative ones count from the current directory, symlinks are resolved, and all except denied ones
        must exist.
        """
        changes = _check_wishes({**fields}, *_FIELDS)
        if self.base == "workspace":
            changed(self, changes)
        policy = replace(self, **changes)
        if policy.strict and {"strict", "deny"} & changes.keys():
            policy.check_deny()
        return policy

    # ---- checking

    def __post_init__(self) -> None:
        check_choice("base", self.base, _BASES)
        if not isinstance(self.network, str) or self.network not in ("none", "host"):
            from nsbox._network.network import wished

            self._set("network", wished(self.network, self.base))
        check_choice("ids", self.ids, ("single", "full", "auto"))
        check_choice("backend", self.backend, ("auto", *BACKENDS))
        check_choice("require", self.require, REQUIRE)
        check_choice("symlinks", self.symlinks, ("refuse", "beneath"))
        for name in ("write", "read", "deny"):
            self._set(name, tuple(dict.fromkeys(check_path(name, p) for p in sequence(name, getattr(self, name)))))
        for name in ("workdir", "tools_bin", "shell_path"):
            if getattr(self, name) is not None:
                self._set(name, check_path(name, getattr(self, name)))
        is_workspace = self.base == "workspace"
        if self.home is not None:
            self._set("home", check_home("home", _text("home", self.home), is_workspace=is_workspace))
        elif is_workspace:
            self._set("home", PRIVATE)
        for name in ("uid", "gid"):
            if getattr(self, name) is not None:
                _check_id(name, getattr(self, name))
        for name in ("inherit_env", "new_session", "landlock", "nested", "kill_on_exit", "strict"):
            check_bool(name, getattr(self, name))
        self._set("degrade", losses(_names("degrade", self.degrade)))
        self._set("seatbelt", _names("seatbelt", self.seatbelt))
        for name in sorted(self.seatbelt - set(PRESETS)):
            raise PolicyError("seatbelt", f"{name!r} is unknown, must be among {', '.join(PRESETS)}")
        if self.tmp_size is not None:
            self._set("tmp_size", check_size("tmp_size", self.tmp_size))
        if self.hostname is not None:
            check_hostname("hostname", self.hostname)
        for name, kind in (("limits", Limits), ("details", Details)):
            if not isinstance(getattr(self, name), kind):
                raise PolicyError(name, f"is {getattr(self, name)!r:.60}, must be nsbox.{kind.__name__}")
        if not isinstance(self.seccomp, Filter):
            check_choice("seccomp", self.seccomp, PROFILES)
        self._set("_patterns", any(map(is_pattern, (*self.deny, *self.read))))
        self._check_files()
        self._set("env", check_env(self.env))
        self._set("pass_env", check_pass_env(self.pass_env))
        self._check_ops()
        self._check_namespaces()
        self._check_together()
        values = tuple(getattr(self, f.name) for f in fields(self) if f.compare)
        self._set("_hash", hash(values))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_files(self) -> None:
        self._set("devices", check_devices(self.devices))
        self._set("links", check_links(self.links))
        names = tuple(check_text("protected", name) for name in sequence("protected", self.protected))
        for name in names:
            if "/" in name:
                raise PolicyError("protected", f"{name!r} is a path; a name protects all files that have it")
        self._set("protected", names)
        rules = sequence("paths", self.paths)
        if rules:
            from nsbox._policy.rules import check_rules

            check_rules(rules, (*self.write, *self.read))
        self._set("paths", rules)
        if self.tools_bin is not None and ":" in self.tools_bin:
            raise PolicyError("tools_bin", f"{self.tools_bin} has a ':', which PATH can't have in a directory")
        if self.base == "workspace" and self.tools_bin is not None and self.tools_bin not in self.read:
            where = "write, where commands could plant programs" if self.tools_bin in self.write else "no list"
            raise PolicyError("tools_bin", f"{self.tools_bin} is in {where}; it belongs in read")

    def _check_ops(self) -> None:
        ops = sequence("ops", self.ops)
        for op in ops:
            if type(op) not in OPS:
                raise PolicyError("ops", f"{op!r} isn't an op such as nsbox.RoBind('/usr', '/usr')")
        if ops and self.base != "layers":
            raise PolicyError("ops", f"belong to Policy.layers(), not to a {self.base} policy")
        if sum(isinstance(op, Proc) for op in ops) > _MOST_PROCS:
            raise PolicyError("ops", f"has more than {_MOST_PROCS} Procs; another one can be a Symlink")
        self._set("ops", ops)

    def _check_namespaces(self) -> None:
        names = _names("unshare", self.unshare)
        if "net" in names:
            raise PolicyError("unshare", "has net, which is spelled network='none' here")
        unknown = names - _ALWAYS - _OPTIONAL
        if unknown:
            known = ", ".join(sorted(_ALWAYS | _OPTIONAL | {"net"}))
            raise PolicyError("unshare", f"{', '.join(sorted(unknown))} is unknown, must be among {known}")
        joined = {"user"} if self.details.userns is not None else set()
        self._set("unshare", (names | _ALWAYS) - self.details.share - joined)
        needs = [("hostname", "uts", self.hostname is not None)]
        needs += [("ops: Hostname", "uts", any(isinstance(op, Hostname) for op in self.ops))]
        needs += [("ops: Mqueue", "ipc", any(isinstance(op, Mqueue) for op in self.ops))]
        for who, what, wanted in needs:
            if wanted and what not in names:
                raise PolicyError(who.split(":")[0], f"{who.split(': ')[-1]} needs {what} in unshare")
        if any(isinstance(op, Loopback) for op in self.ops) and self.network == "host":
            raise PolicyError("ops", "Loopback needs net in unshare")

    def _check_together(self) -> None:
        if self.nested and not self.kill_on_exit and self.base != "layers":
            # A nested command can give the caller a child (CLONE_PARENT), which would delay the sandbox's end forever.
            raise PolicyError("kill_on_exit", "False doesn't go with nested=True")
        if self.backend not in self.acceptable:
            least = next(name for name, n in REQUIRE.items() if self.backend in BACKENDS[:n])
            raise PolicyError(
                "backend", f"{self.backend!r} is less than require={self.require!r}; say require={least!r}"
            )
        if self.nested and self.landlock:
            raise PolicyError("landlock", "doesn't go with nested=True: behind it nothing can be mounted")
        if self.base != "layers" and self.details != NO_DETAILS:
            raise PolicyError("details", f"belong to Policy.layers(), not to a {self.base} policy")
        if self.base != "workspace":
            for name in ("write", "read", "deny", "tmp_size", "strict", "devices", "links"):
                if getattr(self, name):
                    raise PolicyError(name, f"belongs to Policy.workspace(), not to a {self.base} policy")
            return
        if "/" in self.write:
            raise PolicyError("write", "'/' is the whole file system; if that is meant, Policy.host()")
        start = self.workdir or next(iter(self.write), "")
        for denied in self.deny:
            for name in ("write", "read"):
                for path in getattr(self, name):
                    # On the same path deny wins, since the lists may have different authors.
                    if is_below(path, denied) and (path != denied or is_below(start, denied)):
                        raise PolicyError("deny", f"{denied} hides {path}, which {name} allows")
        both = set(self.read) & set(self.write)
        if both:
            raise PolicyError("read", f"{min(both)} is in write too")
        for name in ("write", "read", "deny"):
            for path in getattr(self, name):
                if is_below(path, "/proc") or is_below(path, "/dev"):
                    instead = "use Policy.layers()" if is_below(path, "/proc") else f"devices=[{path!r}] is for devices"
                    raise PolicyError(name, f"{path} lies in a file system of the sandbox's own; {instead}")

    # ---- asking

    @property
    def filter(self) -> Filter:
        """Return the seccomp field as a Filter."""
        return self.seccomp if isinstance(self.seccomp, Filter) else Filter(base=self.seccomp)

    @property
    def has_patterns(self) -> bool:
        """Say if read or deny has patterns, which are looked up at each spawn."""
        return self._patterns

    @property
    def may_nest(self) -> bool:
        """Say if the seccomp profile leaves out its rules about namespaces and mounts."""
        return self.nested or (self.base == "host" and self.filter.base == "default")

    @property
    def may_give_children(self) -> bool:
        """Say if a command may make children of its caller (CLONE_PARENT), as nsbox does to start a sandbox.

        Not if processes may outlive the command: such a child would delay the end of their sandbox.
        """
        return self.nested or (self.may_nest and self.kill_on_exit)

    @property
    def acceptable(self) -> tuple[str, ...]:
        """Return the backends that the policy accepts, "auto" among them."""
        return ("auto", *BACKENDS[: REQUIRE[self.require]])

    def may_lack(self, wish: str) -> bool:
        """Say if a wish, one of LOSSES, may be lost."""
        return self.require == "nothing" or wish in self.degrade

    def sees(self, path: str) -> bool:
        """Say if a workspace policy names this absolute path or one above it; system directories don't count."""
        allowed = any(is_below(path, root) for root in (*self.write, *self.read))
        return allowed and not any(hides(denied, path) for denied in self.deny)

    def taken_from_caller(self) -> tuple[str, ...]:
        """Return the names of the variables that a built environment takes from the caller."""
        own = callers_variables(self.network) if self.base == "workspace" else ("USER", "LANG", "TERM")
        return (*own, *self.pass_env)

    def environment(
        self, caller: Mapping[str, str], path: str, tmpdir: str = "/tmp", home: str | None = None
    ) -> dict[str, str]:
        """Return the command's environment. caller: the caller's. path, tmpdir, home: PATH, TMPDIR and HOME inside."""
        home = home or (self.home if self.home and self.home.startswith("/") else "/")
        env = dict(caller) if self.inherit_env else {"PATH": path, "HOME": home, "TMPDIR": tmpdir}
        env |= {name: caller[name] for name in self.taken_from_caller() if name in caller}
        path = env.get("PATH", "")
        if self.tools_bin is not None and not f"{path}:".startswith(f"{self.tools_bin}:"):
            env["PATH"] = f"{self.tools_bin}:{path}".rstrip(":")
        return env | dict(self.env)

    def __hash__(self) -> int:
        return self._hash

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, ({f.name: getattr(self, f.name) for f in fields(self) if f.init},)


_FIELDS = tuple(f.name for f in fields(Policy) if f.init)


def default_workspace(path: Path, **wishes: Any) -> Policy:
    """Return Policy.workspace(path, ...) for work in the current directory by a caller who gave no policy.

    An earlier command, even of another process, may have left links below that directory; they aren't trusted.
    """
    return _workspace(Policy, Resolution(trusts_here=False), path, wishes)


def _workspace(kind: type[Policy], names: Resolution, path: Path, wishes: dict[str, Any]) -> Policy:
    files = workspace(names, path, wishes)
    policy = kind(base="workspace", **files, **_check_wishes(wishes, "read", "write", "deny"))
    if policy.strict:
        policy.check_deny()
    return policy


def _rebuild(values: dict[str, Any]) -> Policy:
    return Policy(**values)


def _check_wishes(wishes: dict[str, Any], *more: str) -> dict[str, Any]:
    """Return the wishes; raises PolicyError, with a list of the fields, for a name that isn't one."""
    allowed = {*_FIELDS, *more} - ({"base", "write", "read", "deny", "ops", "links"} - {*more})
    for name in wishes:
        if name not in allowed:
            raise PolicyError(name, f"is unknown, must be one of {', '.join(sorted(allowed))}")
    return wishes
