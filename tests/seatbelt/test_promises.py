"""Profiles decided on paper: what a command may read and write on macOS is what it may on Linux, for any policy."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import assume, given, settings
from hypothesis import strategies as st
from nsbox_pure import calm
from nsbox_pure.hosts import DEBIAN
from nsbox_pure.model import Model, below, hosts, places, policies
from nsbox_seatbelt.evaluator import Evaluator
from nsbox_seatbelt.linter import left_open, lint
from nsbox_seatbelt.macs import MAC, profile, values, workspace

from nsbox import Host, Policy, PolicyError, UnavailableError
from nsbox._backends import compile_policy
from nsbox._backends.seatbelt import canonical

READS = ("file-read-data", "file-read-metadata", "file-read-xattr", "file-map-executable", "process-exec*")
WRITES = ("file-write-data", "file-write-mode", "file-write-xattr", "file-write-times", "file-write-owner")
OTHER_WRITES = ("file-write-create", "file-write-unlink", "file-write-flags", "file-write-acl", "file-write-setugid")
OWN = ("/tmp", "/dev", "/proc", "/run", "/var/tmp")  # of a sandbox on Linux, or not there on a Mac


def mac(host: Host) -> Host:
    """Return a Mac with the same files."""
    return replace(
        MAC,
        euid=host.euid,
        names_are_exact=True,
        directories=host.directories,
        prefixes=host.prefixes,
        secrets=host.secrets,
        private=host.private,
    )


def evaluator(policy: Policy, host: Host) -> Evaluator:
    op = profile(policy, host)
    return Evaluator(op.profile, values(op))


def linux(policy: Policy, host: Host) -> Model:
    try:
        return Model(compile_policy(policy, host).ops)
    except (PolicyError, UnavailableError):
        assume(False)
        raise


@settings(calm, max_examples=300)
@given(policies(), hosts)
def test_as_on_linux(policy: Policy, host: Host) -> None:
    """Contents of files can be read, executed and written exactly where the mounts of Linux would show them so."""
    host = replace(host, resolv_conf=None)
    model, verdicts = linux(policy, host), evaluator(policy, mac(host))
    for path in places(policy, host):
        inside = model.resolve(path)
        named = any(below(inside, name) for name in (*policy.write, *policy.read) if name != "/")
        if path == "/" or (any(below(inside, own) for own in OWN) and not named):
            continue
        kind, at = model.kind(path), canonical(inside, MAC)
        for operation in READS:
            if operation == "file-read-metadata" and kind == "own":
                continue  # names on the way can be seen
            assert verdicts.allows(operation, at) is (kind != "own"), (operation, path, kind)
        for operation in WRITES:
            assert verdicts.allows(operation, at) is (kind == "rw"), (operation, path, kind)
        for operation in OTHER_WRITES:  # where it is writable, some things must stay as they are: see below
            assert kind == "rw" or not verdicts.allows(operation, at), (operation, path, kind)


@calm
@given(policies(), hosts)
def test_what_is_named_stays(policy: Policy, host: Host) -> None:
    """Nothing that is named in a writable place, nor a directory on the way to it, can be moved, replaced or made."""
    verdicts = evaluator(policy, mac(host))
    for path in (*policy.write, *policy.read, *policy.deny):
        around = [root for root in policy.write if below(path, root) and path != root]
        named = [name for name in (*policy.write, *policy.read, *policy.deny) if below(path, name) and path != name]
        if path in policy.write and max(named, key=len, default="") in policy.write:
            continue  # it makes no difference
        moved = [path] if around or path in policy.write else []
        if around:
            root = max(around, key=len)
            parts = path[len(root) :].strip("/").split("/")[:-1]
            moved += ["/".join((root, *parts[: n + 1])) for n in range(len(parts))]
        for way in moved:
            at = canonical(way, MAC)
            assert not verdicts.allows("file-write-unlink", at), way
            assert not verdicts.allows("file-write-create", at), way


@calm
@given(policies(), hosts, st.randoms(use_true_random=False))
def test_any_spelling(policy: Policy, host: Host, dice: random.Random) -> None:
    """Where upper and lower case don't count, what is denied in a writable place is so however it is spelled."""
    verdicts = evaluator(policy, replace(mac(host), names_are_exact=False))
    for path in policy.deny:
        roots = [root for root in policy.write if below(path, root)]
        if not roots:
            continue
        root = canonical(max(roots, key=len), MAC)
        tail = canonical(path, MAC)[len(root) :]
        spelled = root + "".join(dice.choice((ch.upper(), ch.lower())) for ch in tail)
        for at in (spelled, f"{spelled}/x"):
            assert not any(verdicts.allows(operation, at) for operation in (*READS, *WRITES)), at
        assert not verdicts.allows("file-write-create", spelled)


@settings(calm, max_examples=60)
@given(policies(), hosts, st.booleans())
def test_lint(policy: Policy, host: Host, exact: bool) -> None:
    """Whatever the policy, the linter has nothing to say, and planning is a function."""
    there = replace(mac(host), names_are_exact=exact)
    op = profile(policy, there)
    assert op == profile(policy, there)
    assert lint(op.profile, values(op)) == []
    assert left_open(op.profile) == []


def test_sensitivity() -> None:
    """The comparison sees a rule that is missing, and one in the wrong place."""
    policy = workspace("/w", deny=["/w/no"])
    op = profile(policy, mac(DEBIAN))
    hidden = next(line for line in op.profile.split("\n") if line.startswith("(deny file-read*") and "DENY_" in line)
    assert not Evaluator(op.profile, values(op)).allows("file-read-data", "/w/no/x")
    assert Evaluator(op.profile.replace(hidden, ""), values(op)).allows("file-read-data", "/w/no/x")
    early = op.profile.replace(hidden, "").replace("(deny default)", f"(deny default)\n{hidden}")
    assert Evaluator(early, values(op)).allows("file-read-data", "/w/no/x")
