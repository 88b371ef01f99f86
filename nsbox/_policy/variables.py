"""Which variables of the caller's a built environment takes, and in which order it looks for programs. Pure."""

from __future__ import annotations

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


def taken(network: object) -> tuple[str, ...]:
    """Return the names that are taken from the caller, besides those that a policy names."""
    if network == "none":
        return TAKEN
    return (*TAKEN, *CERTIFICATES, *PROXIES) if network == "host" else (*TAKEN, *CERTIFICATES)


def search_path(
    first: tuple[str, ...], path: str | None, own: tuple[str, ...], shown: tuple[str, ...], hidden: tuple[str, ...]
) -> str:
    """Return PATH: what comes first, the caller's order as far as it is shown, the system's, the interpreter's own.

    first: a directory of tools, and of venvs. own: of the interpreter that runs nsbox: its `python`, in front, would be
    taken for the project's. shown, hidden: paths of the sandbox; relative entries of the caller's are left out.
    """
    callers = [entry.rstrip("/") for entry in (path or "").split(":") if entry.startswith("/")]
    callers = [
        entry
        for entry in callers
        if any(is_below(entry, above) for above in shown) and not any(is_below(entry, path) for path in hidden)
    ]
    return ":".join(dict.fromkeys((*first, *callers, *STANDARD_PATH.split(":"), *own)))
