"""A plan carried out on paper, what a policy promises in other words, and random policies and hosts to compare them."""

from __future__ import annotations

import os
from collections.abc import Iterable

from hypothesis import strategies as st

from nsbox import (
    Bind,
    Dev,
    Host,
    Hostname,
    Loopback,
    Mask,
    Op,
    Policy,
    Proc,
    RemountRo,
    RoBind,
    Symlink,
    Tmpfs,
)
from nsbox_pure.hosts import MERGED, NIX, OLD_LAYOUT, ROOT


def below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


class Model:
    """Carries a plan out on paper, on a host where everything exists, and then says what is to be seen at a path.

    A mount covers what is at and below its place; destinations are looked up through the links made so far; a mask of
    something that isn't there does nothing. Fails where the executor would: a link made in a directory of the host.
    """

    OWN = (Tmpfs, Dev, Proc)

    def __init__(self, ops: Iterable[Op]) -> None:
        self.done: list[tuple[str, Op]] = [("/", Tmpfs("/"))]
        for op in ops:
            self.apply(op)

    def apply(self, op: Op) -> None:
        assert self.done[-1][1] != RemountRo("/"), "nothing comes after the root is read-only"
        if isinstance(op, Loopback | Hostname):
            return
        dest: str = op.dest  # type: ignore[attr-defined]
        if isinstance(op, Symlink):
            parent, name = dest.rsplit("/", 1)
            dest = f"{self.resolve(parent or '/').rstrip('/')}/{name}"
            there = self.at(dest)
            assert isinstance(there, Tmpfs) or dest != there.dest, f"{op} on {there}"  # type: ignore[attr-defined]
            assert isinstance(there, self.OWN) or self.is_host_link(dest), f"{op.describe()} changes the host"
        else:
            dest = self.resolve(dest)
        if isinstance(op, Mask) and not self.exists(dest):
            assert op.optional, op
            return
        if isinstance(op, Bind | RoBind):
            assert op.src == op.dest, op
        self.done.append((dest, op))

    @staticmethod
    def is_host_link(path: str) -> bool:
        return path in {name for name, target in MERGED if target}

    def at(self, path: str) -> Op:
        """Return the op that decides about a resolved path: the last whose place contains it."""
        return next(op for dest, op in reversed(self.done) if below(path, dest) and not isinstance(op, RemountRo))

    def exists(self, path: str) -> bool:
        return not isinstance(self.at(path), self.OWN) or any(below(dest, path) for dest, _ in self.done)

    def resolve(self, path: str, links: int = 0) -> str:
        assert links < 10
        seen = ""
        parts = path.strip("/").split("/") if path != "/" else []
        for i, part in enumerate(parts):
            seen += f"/{part}"
            there = self.at(seen)
            if isinstance(there, Symlink):
                target = there.target if there.target.startswith("/") else f"{seen.rsplit('/', 1)[0]}/{there.target}"
                return self.resolve("/".join([target, *parts[i + 1 :]]), links + 1)
        return seen or "/"

    def kind(self, path: str) -> str:
        """Say what a command finds: the host's file to read ("ro") or write ("rw"), or nothing of the host ("own")."""
        op = self.at(self.resolve(path))
        if isinstance(op, Bind | RoBind):
            return "rw" if isinstance(op, Bind) else "ro"
        assert isinstance(op, (*self.OWN, Mask)), op
        return "own"


def wanted(policy: Policy, host: Host, path: str) -> str:
    """Say what a command must find at a path: the longest wish that contains it decides, deny over write over read.

    Of what the user didn't name, /proc, /dev and /tmp are the sandbox's own, system directories and the interpreter are
    readable (the latter also where it lies in the workspace, but hidden in what is denied), secrets are hidden, and so is
    what permissions keep from others, except what lies in something named.
    """
    rules: dict[str, str] = {"/": "own", "/proc": "own", "/dev": "own", "/tmp": "own"}
    if not any(below("/var/tmp", named) for named in (*policy.write, *policy.read)):
        rules["/var/tmp"] = "own"
    if "/" in policy.read:
        rules["/run"] = "own"  # sockets of the host
    rules |= {name: "ro" for name, target in host.directories if target is None}
    rules |= dict.fromkeys(policy.read, "ro") | dict.fromkeys(policy.write, "rw") | dict.fromkeys(policy.deny, "own")
    automatic = [(path, "") for path in host.prefixes]  # with the wish that lets them be
    if host.resolv_conf and policy.network == "host":
        automatic.append((host.resolv_conf, ""))
    for path_of_ours, stays in automatic:
        above = [
            (p, kind) for p, kind in rules.items() if below(path_of_ours, p) and p in (*policy.write, *policy.read)
        ]
        closest = max(above, default=("", "ro"), key=lambda rule: len(rule[0]))[1]
        if closest != stays and not any(below(path_of_ours, denied) for denied in policy.deny):
            rules.setdefault(path_of_ours, "ro")
    rules |= dict.fromkeys(host.secrets, "own")
    named_by_user = (*policy.write, *policy.read)
    rules |= {p: "own" for p in host.private if not any(below(p, named) for named in named_by_user)}
    return max(((p, kind) for p, kind in rules.items() if below(path, p)), key=lambda rule: len(rule[0]))[1]


user_paths = st.builds(
    lambda top, parts: "/".join([top, *parts]),
    st.sampled_from(["/home", "/opt", "/tmp", "/var", "/var/tmp", "/usr/local", "/srv", "/run"]),
    st.lists(st.sampled_from(["a", "b"]), max_size=3),
)
deep_paths = user_paths.filter(lambda path: path.count("/") > 1 and not path.startswith("/var/tmp"))
hosts = st.builds(
    Host,
    kernel=st.just((6, 1)),
    euid=st.sampled_from([0, 1000]),
    can_set_ids=st.booleans(),
    directories=st.sampled_from([MERGED, OLD_LAYOUT.directories, NIX.directories, ()]),
    prefixes=st.lists(deep_paths, max_size=2, unique=True).map(tuple),
    secrets=st.sampled_from([(), ROOT.secrets]),
    private=st.sampled_from([(), ROOT.private]),
    resolv_conf=st.none() | st.sampled_from(["/run/a/resolv.conf", "/run/resolv.conf", "/var/a/b/resolv.conf"]),
)


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    """Return a workspace policy in which no wish hides another: some paths anywhere, most nested in one another."""
    kind = st.sampled_from(["write", "read", "deny"])
    root = draw(user_paths)
    nested = st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=4).map(lambda parts: "/".join([root, *parts]))
    kinds = draw(st.dictionaries(user_paths, kind, max_size=3)) | draw(st.dictionaries(nested, kind, max_size=5))
    kinds[root] = "write"
    if draw(st.integers(0, 9)) == 0:
        kinds["/"] = "read"
    shown = [path for path, chosen_kind in kinds.items() if chosen_kind != "deny"]
    chosen: dict[str, list[str]] = {"write": [], "read": [], "deny": []}
    for path, chosen_kind in kinds.items():
        if chosen_kind != "deny" or not any(below(p, path) for p in shown):
            chosen[chosen_kind].append(path)
    return Policy(base="workspace", network=draw(st.sampled_from(["none", "host"])), **chosen)  # type: ignore[arg-type]


def places(policy: Policy, host: Host) -> set[str]:
    """Return the paths where something could go wrong: all that are named, and what is beside and below them."""
    named = {
        *policy.write,
        *policy.read,
        *policy.deny,
        *host.prefixes,
        *host.secrets,
        *host.private,
        "/home",
        "/root",
        "/run",
        "/tmp",
        "/mnt",
    }
    named |= {path for path, target in host.directories if target is None} | (
        {host.resolv_conf} if host.resolv_conf else set()
    )
    paths = {beside for path in named for beside in (path, f"{path}/x", f"{path}/../2")}
    paths = {os.path.normpath(path) for path in paths}
    paths |= {"/" + "/".join(path.strip("/").split("/")[:n]) for path in named for n in (1, 2)}
    # What /var/tmp is when nobody names it, or something below it, is no promise; nor are links of the host.
    named_there = any(below(p, "/var/tmp") or below("/var/tmp", p) for p in (*policy.write, *policy.read))
    return {p for p in paths if named_there or not below(p, "/var/tmp")}
