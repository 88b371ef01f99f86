"""A policy for a delegate, to whom work is passed on: whatever it says, it never allows more than its parent."""

from __future__ import annotations

import os

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, fields, replace
from nsbox._base.paths import is_below
from nsbox._network.network import Network
from nsbox._network.network import wished as as_list
from nsbox._policy.limits import SMALL_LIMITS, Limits
from nsbox._policy.policy import BACKENDS, REQUIRE
from nsbox._policy.rules import PathRule, innermost_rule

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from nsbox._policy.policy import Policy

_SAME = ("base", "ops", "details", "unshare", "ids", "uid", "gid", "inherit_env", "home", "hostname")
_STRICTNESS = {"seccomp": ("off", "default", "hardened"), "symlinks": ("beneath", "refuse")}


def child(policy: Policy, attach: Iterable[str | os.PathLike[str]], wishes: dict[str, Any]) -> Policy:
    """Return the policy with these changes, if each of them takes something away; raises PolicyError otherwise.

    attach: paths of files and directories that the delegate sees too; the policy itself has to allow them.
    wishes: values for fields of the policy, by name.
    """
    from nsbox._tools.view import view

    if policy.base != "workspace":
        raise PolicyError("base", f"a {policy.base} policy has no paths that could be fewer; see Policy.workspace()")
    for name, value in (("attach", attach), *wishes.items()):
        if name in ("attach", "deny", "protected", "read", "write", "paths", "pass_env") and isinstance(value, str):
            raise PolicyError(name, f"is a str, must be a sequence, such as [{value!r}]")
    attached = [str(view(policy).resolve(path)) for path in attach]
    given = dict(wishes)
    for name in ("deny", "protected"):
        if name in given:
            given[name] = (*getattr(policy, name), *given[name])
    if "limits" in given and isinstance(given["limits"], Limits):
        given["limits"] = _limits(policy.limits, given["limits"])
    if "env" in given:
        given["env"] = dict(given["env"])
    if "network" in given:
        given["network"] = _network(policy, given["network"])
    made = policy.with_(**_fitting(policy, given))
    if attached:
        more = [path for path in attached if policy.sees(path) and not made.sees(path)]
        rules = {rule.root: rule for rule in (*policy.paths, *made.paths)}
        made = made.with_(read=(*made.read, *more), paths=_carried(rules.values(), (*made.write, *made.read, *more)))
    check(policy, made)
    return made


def _fitting(policy: Policy, given: dict[str, Any]) -> dict[str, Any]:
    """Return the changes without rules and a working directory for paths that aren't in them any more.

    The directory of tools stays readable.
    """
    if not {"read", "write"} & given.keys():
        return given
    for name in {"read", "write"} & given.keys():
        given[name] = tuple(given[name])
    named = [*map(os.path.realpath, (*given.get("write", policy.write), *given.get("read", policy.read)))]
    if "paths" not in given:
        given["paths"] = _carried(policy.paths, named)
    if "tools_bin" not in given and policy.tools_bin is not None and policy.tools_bin not in named:
        given["read"] = (*given.get("read", policy.read), policy.tools_bin)
    here = policy.workdir
    if "workdir" not in given and here is not None and not any(is_below(here, path) for path in named):
        given["workdir"] = named[0] if named else "/"
    return given


def _network(policy: Policy, wished: Any) -> Any:
    """Return a child's list with everything that the parent's denies, and with the parent's amounts by default."""
    if wished in ("none", "host") or policy.network in ("none", "host"):
        return wished
    made, parents = as_list(wished, policy.base), policy.network
    assert isinstance(parents, Network)
    denied = tuple(entry.text for entry in parents.entries if entry.is_denied)
    if wished is not made:
        return replace(parents, allow=made.allow, deny=denied)
    return replace(made, deny=(*made.deny, *denied), bytes=parents.bytes if made.bytes is None else made.bytes)


def _limits(parents: Limits, wished: Limits) -> Limits:
    values = {f.name: getattr(wished, f.name) for f in fields(Limits)}
    return Limits(**{name: getattr(parents, name) if value is None else value for name, value in values.items()})


def check(parent: Policy, policy: Policy) -> None:
    """Raise PolicyError, which names the field, if a policy allows anything that the parent doesn't."""
    for name in _SAME:
        if getattr(policy, name) != getattr(parent, name):
            raise PolicyError(name, "is another than the parent's, and would be a right of its own")
    _check_paths(parent, policy)
    from nsbox._tools.view import view

    more = view(policy).exceeds(view(parent))  # this also covers what follows from the names alone
    if more:
        raise PolicyError(
            "write" if more in policy.write else "read", f"{more} is hidden from the parent, or read-only"
        )
    _check_network(parent, policy)
    for name, order in _STRICTNESS.items():
        ours, theirs = getattr(policy, name), getattr(parent, name)
        known = ours in order and theirs in order
        if ours != theirs and not (known and order.index(ours) > order.index(theirs)):
            raise PolicyError(name, f"{ours!r} is less strict than the parent's {theirs!r}")
    for name in ("landlock", "new_session", "kill_on_exit"):
        if getattr(parent, name) and not getattr(policy, name):
            raise PolicyError(name, "is True in the parent")
    if policy.nested and not parent.nested:
        raise PolicyError("nested", "True is more than the parent's False")
    _check_backend(parent, policy)
    _check_values(parent, policy)


def _check_network(parent: Policy, policy: Policy) -> None:
    """Refuse a network that allows more: "none" is less than a list, which is less than the host's."""
    if policy.network == "none" or parent.network == "host":
        return
    wish = repr(policy.network) if isinstance(policy.network, str) else "a list"
    if isinstance(parent.network, str):
        if isinstance(policy.network, Network) and not policy.network.allow:
            return  # an empty list allows nothing either
        raise PolicyError("network", f"{wish} is more than the parent's 'none'")
    if isinstance(policy.network, str):
        raise PolicyError("network", f"{wish} is more than the parent's list")
    assert isinstance(parent.network, Network)
    assert isinstance(policy.network, Network)
    more = parent.network.covers(policy.network)
    if more:
        raise PolicyError("network", more)


def _check_paths(parent: Policy, policy: Policy) -> None:
    for denied in parent.deny:
        if denied not in policy.deny:
            raise PolicyError("deny", f"{denied} is denied by the parent")
    for name in ("write", "read"):
        for path in getattr(policy, name):
            if not parent.sees(path):
                raise PolicyError(name, f"{path} is outside of what the parent sees")
            roots = [root for root in (*parent.write, *parent.read) if is_below(path, root)]
            if name == "write" and max(roots, key=len) not in parent.write:
                raise PolicyError("write", f"{path} is read-only for the parent")
    for path in parent.read:  # it may be read-only inside of something writable
        if any(is_below(path, root) and path != root for root in policy.write) and path not in policy.read:
            raise PolicyError("read", f"{path} is read-only for the parent, in a directory that is writable")
    inside = [rule.root for rule in parent.paths if policy.sees(rule.root)]
    for path in (*policy.write, *policy.read, *inside):
        theirs, ours = innermost_rule(parent.paths, path), innermost_rule(policy.paths, path)
        if theirs is not None and (ours is None or not _is_stricter(ours, theirs)):
            raise PolicyError("paths", f"the parent's rule {theirs.name} has to hold for {path} too")
    for name in parent.protected:
        if name not in policy.protected:
            raise PolicyError("protected", f"{name} is protected by the parent")


def _carried(rules: Iterable[PathRule], named: Iterable[str]) -> tuple[PathRule, ...]:
    """Return the rules of the named paths. A path below a rule's root gets a rule of its own that says the same."""
    rules, named = tuple(rules), tuple(named)
    carried = {rule.root: rule for rule in rules if rule.root in named}
    for path in named:
        rule = innermost_rule(rules, path)
        if rule is not None and path not in carried:
            carried[path] = PathRule(f"{rule.name}{path[len(rule.root) :]}", path, rule.suffixes, rule.max_file_bytes)
    return tuple(carried.values())


def _is_stricter(rule: PathRule, parents: PathRule) -> bool:
    if parents.suffixes and not (rule.suffixes and all(end.endswith(parents.suffixes) for end in rule.suffixes)):
        return False
    most, ours = parents.max_file_bytes, rule.max_file_bytes
    return most is None or (ours is not None and int(ours) <= int(most))


def _check_backend(parent: Policy, policy: Policy) -> None:
    if REQUIRE[policy.require] > REQUIRE[parent.require]:
        raise PolicyError("require", f"{policy.require!r} is less than the parent's {parent.require!r}")
    if parent.backend == "auto" and policy.backend not in ("auto", "namespaces", "bwrap", "seatbelt"):
        raise PolicyError("backend", f"{policy.backend!r} may contain less than the parent's")
    if policy.backend != parent.backend and parent.backend != "auto":
        is_more = policy.backend in BACKENDS and BACKENDS.index(policy.backend) < BACKENDS.index(parent.backend)
        if not is_more:
            raise PolicyError("backend", f"{policy.backend!r} is another than the parent's {parent.backend!r}")
    asked = policy.seatbelt - parent.seatbelt
    if asked:
        raise PolicyError("seatbelt", f"{', '.join(sorted(asked))} isn't allowed to the parent")
    more = policy.degrade - parent.degrade
    if more:
        raise PolicyError("degrade", f"{', '.join(sorted(more))} may not be lost for the parent")


def _check_values(parent: Policy, policy: Policy) -> None:
    names = set(policy.pass_env) - set(parent.pass_env)
    if names:
        raise PolicyError("pass_env", f"{', '.join(sorted(names))} isn't passed to the parent")
    hidden = dict(parent.env).keys() - dict(policy.env).keys()
    if hidden and policy.inherit_env:
        raise PolicyError("env", f"{min(hidden)} would be the caller's, which the parent doesn't see")
    for name in hidden & {"PATH", "HOME", "TMPDIR", *policy.taken_from_caller()}:
        raise PolicyError("env", f"{name} would be another than the parent's")
    for pair in policy.env:
        if pair not in parent.env:
            raise PolicyError("env", f"{pair[0]} is set to another value than the parent's")
    if policy.tools_bin not in (None, parent.tools_bin):
        raise PolicyError("tools_bin", f"{policy.tools_bin} is another than the parent's")
    if parent.tmp_size is not None and (policy.tmp_size is None or int(policy.tmp_size) > int(parent.tmp_size)):
        raise PolicyError("tmp_size", f"is more than the parent's {parent.tmp_size}")
    for f in fields(Limits):
        most, ours = getattr(parent.limits, f.name), getattr(policy.limits, f.name)
        if f.name == "core_size":  # none of it, in a workspace
            most, ours = most or 0, ours or 0
        if f.name in SMALL_LIMITS and policy.base == "workspace" and ours is None:
            ours = SMALL_LIMITS[f.name]
        if f.name in SMALL_LIMITS and parent.base == "workspace" and most is None:
            most = SMALL_LIMITS[f.name]
        if most is not None and (ours is None or ours > most):
            raise PolicyError(f"limits.{f.name}", f"{ours} is more than the parent's {most}")
