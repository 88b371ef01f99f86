"""Environment variables: those that a policy sets, those that a built environment takes, and PATH. Pure."""

from __future__ import annotations

from nsbox._base.checks import check_text, is_mapping, sequence
from nsbox._base.display import type_phrase
from nsbox._base.errors import PolicyError
from nsbox._base.paths import is_below

LOCALE = (  # locale(7)
    *("LC_ALL", "LC_ADDRESS", "LC_COLLATE", "LC_CTYPE", "LC_IDENTIFICATION", "LC_MEASUREMENT", "LC_MESSAGES"),
    *("LC_MONETARY", "LC_NAME", "LC_NUMERIC", "LC_PAPER", "LC_TELEPHONE", "LC_TIME"),
)
TAKEN = ("USER", "LANG", "LANGUAGE", *LOCALE, "TZ", "TERM", "COLORTERM", "NO_COLOR", "FORCE_COLOR")
CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "CURL_CA_BUNDLE")
_PROXIES = ("http_proxy", "https_proxy", "ftp_proxy", "all_proxy", "no_proxy")
PROXIES = tuple(name for proxy in _PROXIES for name in (proxy, proxy.upper()))
STANDARD_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
VENVS = (".venv", "venv")  # in a workspace


def callers_variables(network: object) -> tuple[str, ...]:
    """Return the variables taken from the caller in addition to those that a policy names. network: the policy's."""
    if network == "none":
        return TAKEN
    return (*TAKEN, *CERTIFICATES, *PROXIES) if network == "host" else (*TAKEN, *CERTIFICATES)


def search_path(
    first: tuple[str, ...], path: str | None, own: tuple[str, ...], shown: tuple[str, ...], hidden: tuple[str, ...]
) -> str:
    """Return PATH: `first`, then the caller's entries that the sandbox has, the system's, and last the interpreter's.

    first: the directory of tools, and those of venvs.
    path: the caller's PATH; its relative entries are left out.
    own: directories of the interpreter that runs nsbox. If they came first, its `python` would shadow the project's.
    shown, hidden: paths of the sandbox.
    """
    callers = [entry.rstrip("/") for entry in (path or "").split(":") if entry.startswith("/")]
    callers = [
        entry
        for entry in callers
        if any(is_below(entry, above) for above in shown) and not any(is_below(entry, path) for path in hidden)
    ]
    return ":".join(dict.fromkeys((*first, *callers, *STANDARD_PATH.split(":"), *own)))


def check_env(value: object) -> tuple[tuple[str, str], ...]:
    """Return the env of a policy, a mapping or pairs, as pairs; raises PolicyError."""
    pairs = value.items() if is_mapping(value) else sequence("env", value)
    env: dict[str, str] = {}
    for pair in pairs:
        if not isinstance(pair, tuple) or len(pair) != 2:
            raise PolicyError("env", f"{pair!r} isn't a pair of a name and a value")
        name, text = pair
        check_text("env", name)
        if "=" in name:
            raise PolicyError("env", f"{name!r} has a '=', which no variable's name can have")
        if not isinstance(text, str):
            raise PolicyError("env", f"the value of {name} is {type_phrase(text)}, must be a str")
        if text:
            check_text("env", text)
        env[name] = text
    return tuple(env.items())


def check_pass_env(value: object) -> tuple[str, ...]:
    """Return the pass_env of a policy as a tuple; raises PolicyError."""
    names = tuple(check_text("pass_env", name) for name in sequence("pass_env", value))
    if any("=" in name for name in names):
        raise PolicyError("pass_env", "is a sequence of names; values go into env")
    return names
