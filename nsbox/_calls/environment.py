"""The environment of a tool call: the policy's, the caller's additions, and secrets, which are masked in its output."""

from __future__ import annotations

import os
from collections.abc import Mapping

from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._lookup.host import host_for
from nsbox._spawn.prepare import prepare
from nsbox._tools import dangerous

if TYPE_CHECKING:
    from collections.abc import Callable

    from nsbox._leaks.scrub import Scrubber
    from nsbox._policy.policy import Policy
    from nsbox.secrets import Secret, Store


def check_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for one command; raises PolicyError for one that makes programs run other code."""
    if not isinstance(env, Mapping):
        raise TypeError(f"env is {type_phrase(env)}, must be a mapping of names to values")
    for name, value in env.items():
        if not (isinstance(name, str) and isinstance(value, str)):
            raise TypeError(f"env has {name!r}: {type(value).__name__}, names and values must be str")
        if name in dangerous.HARMLESS_ENV:
            continue
        reason = dangerous.DANGEROUS_ENV.get(name) or next(
            (why for prefix, why in dangerous.DANGEROUS_PREFIXES.items() if name.startswith(prefix)), None
        )
        if reason is not None:
            raise PolicyError("env", f"{name} is refused in a tool call: {reason}; Policy.env can set it")
    return dict(env)


def environment(
    policy: Policy,
    basis: Mapping[str, str] | None,
    extra: dict[str, str],
    exists: Callable[[str], bool] | None = None,
) -> dict[str, str] | None:
    """Return the environment of a command; None: the one that the policy builds. exists: as for built()."""
    if basis is not None:
        return {**basis, **extra}
    return built(policy, exists) | extra if extra else None


def built(policy: Policy, exists: Callable[[str], bool] | None) -> dict[str, str]:
    """Return the environment that the policy builds now. exists: a way's."""
    return prepare(policy, host_for(policy)).environment.variables(dict(os.environ), exists)


def with_secrets(
    env: dict[str, str], secrets: Store | Mapping[str, Secret | str] | None
) -> tuple[dict[str, str], tuple[Scrubber, Scrubber] | tuple[None, None]]:
    """Return the environment with secrets in it, and a scrubber for each output; None: there are no secrets."""
    if secrets is None:
        return env, (None, None)
    from nsbox.secrets import Secret, inject

    if isinstance(secrets, str) or not (isinstance(secrets, Mapping) or hasattr(secrets, "names")):
        raise TypeError(f"secrets is {type_phrase(secrets)}, must be a store, or names and values")
    if isinstance(secrets, Mapping):
        for name, value in secrets.items():
            if not isinstance(value, Secret | str):  # the error doesn't show it
                raise TypeError(f"secrets has {name!r}: {type(value).__name__}, values must be str or Secret")
    more, scrubber = inject(env, secrets)
    check_environment(more)
    return more, (scrubber, scrubber.another())
