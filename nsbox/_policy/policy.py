"""Policies: what a command may read, write, reach and use up, as a frozen, hashable, picklable value.

Here lives everything that a user may wish for, and whether the wishes make sense together. What follows from a wish on
a given machine is a backend's business.
"""

from __future__ import annotations

from nsbox._base.checks import (
    check_bool,
    check_hostname,
    check_path,
    check_size,
    check_target,
    check_text,
    is_mapping,
    is_path_like,
    sequence,
)
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, Frozen, field, fields, frozen_by_name, replace
from nsbox._base.lean_os import os
from nsbox._base.paths import is_below
from nsbox._paths.home import PRIVATE, check_home
from nsbox._paths.patterns import hides, is_pattern
from nsbox._paths.resolution import Resolution
from nsbox._paths.workspace import changed, workspace
from nsbox._plan.ops import OPS, Hostname, Loopback, Mqueue, Op, Proc
from nsbox._policy.details import NO_DETAILS, Details
from nsbox._policy.limits import Limits
from nsbox._policy.questions import Questions
from nsbox._policy.variables import taken
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
BACKENDS = ("namespaces", "bwrap", "seatbelt", "landlock", "passthrough")  # from the one that contains most
REQUIRE = {"isolated": 2, "filesystem": 4, "nothing": 5}  # how many of these are acceptable
BEST_EFFORT = (
    *("attributes", "deny", "hostname", "ids", "landlock", "limits.cpus", "limits.memory", "limits.processes"),
    *("limits.total_memory", "network", "processes", "read", "seccomp", "secrets", "tmp"),
)
PRESETS = ("fonts", "fsevents", "power", "preferences", "process-list", "tls")  # of _backends.seatbelt_rules
_BASES = ("workspace", "host", "layers")
_MAX_ID = 2**32 - 2  # 2**32 - 1 is "no id" to the kernel


def _check_id(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_ID:
        raise PolicyError(name, f"{value!r} is no id between 0 and {_MAX_ID}")
    return value


def _text(name: str, value: Any) -> str:
    return check_text(name, os.fspath(value) if is_path_like(value) else value)


def _names(name: str, value: object) -> frozenset[str]:
    return frozenset(check_text(name, item) for item in sequence(name, value))


def _choice(name: str, value: object, allowed: Iterable[str]) -> None:
    if value not in tuple(allowed):
        raise PolicyError(name, f"{value!r} is unknown, must be one of {', '.join(allowed)}")


@frozen_by_name
class Policy(Questions, Frozen):
    """A wish. Made by workspace(), host() or layers(), changed by with_(); construction checks every field.

    base: which of the three it is. workdir: where commands start when they don't say. write, read, deny: absolute
    paths, in a workspace; the longest path that contains a file decides about it, and deny wins over the others on the
    same path. ops: what layers() was given. network: "none" (an own net namespace with only lo),
    "host", or a list of what may be connected to, as Network has it: entries, a Network, or "public". unshare:
    namespaces besides user, mount and pid, which every sandbox has. ids: "single" maps one uid and gid, "full" all that
    the caller has (it needs CAP_SETUID and CAP_SETGID), "auto" the latter where possible. uid, gid: the command's,
    inside; None: the caller's. home: in a workspace "private" (the default: an empty directory of the sandbox's own; a
    Sandbox keeps one as long as it is open), "private:NAME" (kept by that name, so that one run leaves things to the
    next), "workspace", "tmp", or an absolute path; else a path.
    env: variables to set. pass_env: names taken from the caller's environment at spawn time. inherit_env: take all of
    it. seccomp: which system calls there are: a profile ("default" in a workspace, "hardened", or "off", the other
    policies' own, in which only what leads to the caller is refused), or a Filter. landlock: rules about files by
    Landlock too, behind the mounts; each open(2) then takes about a third longer. backend: what contains the command:
    "namespaces", "bwrap", "seatbelt" (macOS), "landlock" or "passthrough"; "auto": the first of them that can be used
    here. require: what has to be contained at least: all ("isolated": namespaces, bwrap), the contents of files
    ("filesystem": seatbelt and landlock too) or "nothing" (even passthrough, which contains nothing and says so by one
    warning). best_effort: wishes that may go unfulfilled where the backend can't grant them, instead of an
    UnavailableError; with require="nothing" all may. nested: the command makes sandboxes
    itself (nsbox, bwrap, runc, Chromium): the calls that this takes are allowed, whatever seccomp says. new_session:
    setsid(2), so that the command has no controlling terminal to type into (CVE-2017-5226). kill_on_exit: what the
    command leaves running ends with it; False: it goes on in the sandbox, at most until the caller ends, and wait()
    doesn't wait for it. details: what only layers() can ask for.
    tools_bin: a directory of programs, read-only inside and the first of PATH. shell_path: the shell that shell() runs,
    as a path in the sandbox; None: bash where the sandbox has it, else /bin/sh. paths: rules about files, which
    Sandbox.read() and its kin keep to; protected: names, in any case, of files that Sandbox.write() never writes.
    seatbelt: names of what commands may ask of macOS besides what all may, such as "tls", for programs that have the
    system check certificates (Go); of no effect elsewhere.
    strict: what deny names or matches has to be there, else PolicyError. devices: nodes below /dev, or directories of
    them, that a workspace has besides the usual ones. links: symlinks on the way to what was named, and their targets,
    which are made inside too.
    symlinks: what these do with links in a path: "refuse", or "beneath" to follow those that stay in the directory that
    the policy names.
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
    best_effort: frozenset[str] = frozenset()
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
        **wishes: Unpack[Wishes],
    ) -> Policy:
        """Return the policy for work in one directory, which is readable and writable at its own path.

        System directories and the running interpreter are readable; secrets of the host and `deny` are masked; /tmp is
        private, the network off, the environment built. Relative paths count from the current directory. tools_bin is
        readable too. read and deny take patterns (*, ?, [...], **), looked up at each spawn. `wishes` are fields of
        Policy. Raises PolicyError for a path that doesn't exist (except in deny), or a workspace that is "/".
        """
        return _workspace(cls, Resolution(), path, read, write, deny, {**wishes})

    @classmethod
    def host(cls, **wishes: Unpack[Wishes]) -> Policy:
        """Return the policy that contains least: the whole file system writable, host network, inherited environment.

        What remains: an own pid namespace (so that nothing survives the command), no capabilities, no new privileges,
        and the default seccomp profile without its rules about namespaces and mounts, so that sandboxes can be made.
        For migration and for tests of parity with the standard library. `wishes` are fields of Policy.
        """
        defaults: dict[str, Any] = {
            "network": "host",
            "unshare": _ALWAYS,
            "ids": "auto",
            "inherit_env": True,
            "new_session": False,
            "seccomp": "default",
        }
        return cls(base="host", **(defaults | _known({**wishes})))

    @classmethod
    def layers(cls, *ops: Op, unshare: Iterable[str] = (), **wishes: Unpack[Layered]) -> Policy:
        """Return a policy that is just these ops, in this order, on an empty root; bwrap-level control.

        unshare: namespaces besides user, mount and pid: any of ipc, uts, cgroup, net, time. `wishes` are fields of
        Policy; the environment is inherited unless they say otherwise, as with bwrap.
        """
        names = _names("unshare", unshare)
        if "net" in names and wishes.get("network") == "host":
            raise PolicyError("network", "is 'host', but unshare has net")
        defaults: dict[str, Any] = {
            "network": "none" if "net" in names else "host",
            "inherit_env": True,
            "new_session": False,
        }
        return cls(base="layers", ops=ops, unshare=(names - {"net"}) | _ALWAYS, **(defaults | _known({**wishes})))

    def with_(self, **wishes: Unpack[Changes]) -> Policy:
        """Return a copy with these fields changed; raises PolicyError as the constructor does.

        Paths for read, write and deny of a workspace policy are taken as workspace() takes them: relative ones count
        from the current directory, symlinks are resolved, and all but denied ones must exist.
        """
        changes = _known({**wishes}, *_FIELDS)
        if self.base == "workspace":
            changed(self, changes)
        made = replace(self, **changes)
        if made.strict and {"strict", "deny"} & changes.keys():
            made.check_deny()
        return made

    # ---- checking

    def __post_init__(self) -> None:
        _choice("base", self.base, _BASES)
        if not isinstance(self.network, str) or self.network not in ("none", "host"):
            from nsbox._network.network import wished

            self._set("network", wished(self.network, self.base))
        _choice("ids", self.ids, ("single", "full", "auto"))
        _choice("backend", self.backend, ("auto", *BACKENDS))
        _choice("require", self.require, REQUIRE)
        _choice("symlinks", self.symlinks, ("refuse", "beneath"))
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
        for field_, known in (("best_effort", BEST_EFFORT), ("seatbelt", PRESETS)):
            self._set(field_, _names(field_, getattr(self, field_)))
            for name in sorted(getattr(self, field_) - set(known)):
                raise PolicyError(field_, f"{name!r} is unknown, must be among {', '.join(known)}")
        if self.tmp_size is not None:
            self._set("tmp_size", check_size("tmp_size", self.tmp_size))
        if self.hostname is not None:
            check_hostname("hostname", self.hostname)
        for name, kind in (("limits", Limits), ("details", Details)):
            if not isinstance(getattr(self, name), kind):
                raise PolicyError(name, f"is a {type(getattr(self, name)).__name__}, must be nsbox.{kind.__name__}")
        if not isinstance(self.seccomp, Filter):
            _choice("seccomp", self.seccomp, PROFILES)
        self._set("_patterns", any(map(is_pattern, (*self.deny, *self.read))))
        self._check_names()
        self._check_files()
        self._check_env()
        self._check_ops()
        self._check_namespaces()
        self._check_together()
        values = tuple(getattr(self, f.name) for f in fields(self) if f.compare)
        self._set("_hash", hash(values))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)

    def _check_names(self) -> None:
        self._set("devices", tuple(dict.fromkeys(check_path("devices", p) for p in sequence("devices", self.devices))))
        for path in self.devices:
            if not is_below(path, "/dev") or path == "/dev":
                raise PolicyError("devices", f"{path} isn't below /dev")
        pairs = sequence("links", self.links)
        if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
            raise PolicyError("links", "has to have pairs: a link, and its target")
        self._set("links", tuple((check_path("links", at), check_target("links", to)) for at, to in pairs))

    def _check_files(self) -> None:
        names = tuple(check_text("protected", name) for name in sequence("protected", self.protected))
        for name in names:
            if "/" in name:
                raise PolicyError("protected", f"{name!r} is a path; a name protects all files that have it")
        self._set("protected", names)
        rules = sequence("paths", self.paths)
        if rules:
            from nsbox._policy.rules import PathRule
        for rule in rules:
            if not isinstance(rule, PathRule):
                raise PolicyError("paths", f"has a {type(rule).__name__}, must have nsbox.PathRule")
            if rule.root not in (*self.write, *self.read):
                raise PolicyError("paths", f"{rule.name}: {rule.root} is neither in read nor in write")
        for what in ("name", "root"):
            values = [getattr(rule, what) for rule in rules]
            if len({*values}) < len(values):
                raise PolicyError("paths", f"two rules have the same {what}")
        self._set("paths", rules)
        if self.tools_bin is not None and ":" in self.tools_bin:
            raise PolicyError("tools_bin", f"{self.tools_bin} has a ':', which PATH can't have in a directory")
        if self.base == "workspace" and self.tools_bin is not None and self.tools_bin not in self.read:
            where = "write, where commands could plant programs" if self.tools_bin in self.write else "no list"
            raise PolicyError("tools_bin", f"{self.tools_bin} is in {where}; it belongs into read")

    def _check_env(self) -> None:
        pairs = self.env.items() if is_mapping(self.env) else sequence("env", self.env)
        env: dict[str, str] = {}
        for pair in pairs:
            if not isinstance(pair, tuple) or len(pair) != 2:
                raise PolicyError("env", f"{pair!r} is no pair of a name and a value")
            name, value = pair
            check_text("env", name)
            if "=" in name:
                raise PolicyError("env", f"{name!r} has a '=', which no variable's name can have")
            if not isinstance(value, str):
                raise PolicyError("env", f"the value of {name} is a {type(value).__name__}, must be a str")
            if value:
                check_text("env", value)
            env[name] = value
        self._set("env", tuple(env.items()))
        names = tuple(check_text("pass_env", name) for name in sequence("pass_env", self.pass_env))
        if any("=" in name for name in names):
            raise PolicyError("pass_env", "is a sequence of names; values go into env")
        self._set("pass_env", names)

    def _check_ops(self) -> None:
        ops = sequence("ops", self.ops)
        for op in ops:
            if type(op) not in OPS:
                raise PolicyError("ops", f"{op!r} is no op such as nsbox.RoBind('/usr', '/usr')")
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
            # A child that a nested command gives the caller (CLONE_PARENT) would hold up the sandbox's end for ever.
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
                    # On the same path deny wins: lists come from several sources.
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
        """Return what seccomp wishes, as a Filter."""
        return self.seccomp if isinstance(self.seccomp, Filter) else Filter(base=self.seccomp)

    @property
    def has_patterns(self) -> bool:
        """Say if there are patterns in read or deny, which are looked up at each spawn."""
        return self._patterns

    @property
    def may_nest(self) -> bool:
        """Say if the seccomp profile leaves out what it has about namespaces and mounts."""
        return self.nested or (self.base == "host" and self.filter.base == "default")

    @property
    def may_give_children(self) -> bool:
        """Say if a command may make children of the caller's (CLONE_PARENT), as sandboxes of nsbox's are made.

        Not one that others outlive: such a child would hold up their sandbox's end.
        """
        return self.nested or (self.may_nest and self.kill_on_exit)

    @property
    def acceptable(self) -> tuple[str, ...]:
        """Return the backends that the policy accepts, "auto" among them."""
        return ("auto", *BACKENDS[: REQUIRE[self.require]])

    def may_lack(self, wish: str) -> bool:
        """Say if this one of BEST_EFFORT may go unfulfilled."""
        return self.require == "nothing" or wish in self.best_effort

    def sees(self, path: str) -> bool:
        """Say if a workspace policy itself names this absolute path or one above it; system directories don't count."""
        allowed = any(is_below(path, root) for root in (*self.write, *self.read))
        return allowed and not any(hides(denied, path) for denied in self.deny)

    def taken_from_caller(self) -> tuple[str, ...]:
        """Return the names of the variables that a built environment takes from the caller's."""
        own = taken(self.network) if self.base == "workspace" else ("USER", "LANG", "TERM")
        return (*own, *self.pass_env)

    def environment(
        self, caller: Mapping[str, str], path: str, tmpdir: str = "/tmp", home: str | None = None
    ) -> dict[str, str]:
        """Return the command's environment. caller: the caller's; path, tmpdir, home: those of this command."""
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
    """Return Policy.workspace(path, ...) for a caller that works in the current directory, and has no other policy.

    What is below it can be what an earlier command has left there, one of another process's too.
    """
    read, write, deny = (wishes.pop(name, ()) for name in ("read", "write", "deny"))
    return _workspace(Policy, Resolution(trusts_here=False), path, read, write, deny, wishes)


def _workspace(
    kind: type[Policy],
    names: Resolution,
    path: Path,
    read: Iterable[Path],
    write: Iterable[Path],
    deny: Iterable[Path],
    wishes: dict[str, Any],
) -> Policy:
    found = workspace(names, path, read, write, deny, wishes)
    policy = kind(base="workspace", **found, **_known(wishes, "read", "write", "deny"))
    if policy.strict:
        policy.check_deny()
    return policy


def _rebuild(values: dict[str, Any]) -> Policy:
    return Policy(**values)


def _known(wishes: dict[str, Any], *more: str) -> dict[str, Any]:
    """Refuse names that aren't wishes, with an error that lists those that are."""
    allowed = {*_FIELDS, *more} - ({"base", "write", "read", "deny", "ops", "links"} - {*more})
    for name in wishes:
        if name not in allowed:
            raise PolicyError(name, f"is unknown, must be one of {', '.join(sorted(allowed))}")
    return wishes
