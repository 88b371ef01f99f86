"""What a record says of a policy: a digest, by which equal policies are known, and a summary for people."""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache
from typing import TYPE_CHECKING

from nsbox._base.frozen import Frozen, fields

if TYPE_CHECKING:
    from typing import Any

    from nsbox._policy.policy import Policy

_OF_A_SANDBOX = "private:box-"


@lru_cache(256)
def digest(policy: Policy) -> str:
    """Return "sha256:" and 64 hex digits, the same in every process for policies that say the same.

    Values of environment variables don't count, only their names: a digest of a short secret could be guessed.
    """
    text = json.dumps(plain(policy), sort_keys=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def plain(value: Any) -> Any:
    """Return a wish as values of JSON. Fields that have their default are left out, so that new ones change nothing."""
    if isinstance(value, Frozen):
        told: dict[str, Any] = {"": type(value).__name__}
        for field in fields(value):
            own = getattr(value, field.name)
            if field.name.startswith("_") or own == field.default:
                continue
            if field.name == "home" and (own == "private" or str(own).startswith(_OF_A_SANDBOX)):
                continue  # "private", the default, as a Sandbox spells it: with a name of its own
            told[field.name] = [name for name, _ in own] if field.name == "env" else plain(own)
        return told
    if isinstance(value, frozenset | set):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, bytes):
        return {"bytes": hashlib.sha256(value).hexdigest()}
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    return value if value is None or isinstance(value, bool | int | float) else repr(value)


def summary(policy: Policy) -> dict[str, object]:
    """Return what matters most of a policy: first what is short, so that long lists take no room from it."""
    network: Any = policy.network
    limits = {f.name: value for f in fields(policy.limits) if (value := getattr(policy.limits, f.name)) is not None}
    return {
        "digest": digest(policy),
        "base": policy.base,
        "require": policy.require,
        "degrade": sorted(policy.degrade),
        "limits": limits,
        "workdir": policy.workdir,
        "network": network if isinstance(network, str) else list(network.allow),
        "write": list(policy.write),
    }
