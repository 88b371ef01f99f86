"""What programs print when they meet a sandbox, in their own words, and what helps: (kind, message) of a hint each.

_tools.hints looks at the paths in messages.
"""

from __future__ import annotations

import os
import pwd
import re

from nsbox._base.display import printable
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._base.paths import is_below
from nsbox._lookup.host import host_for
from nsbox._paths.resolution import links_on
from nsbox._spawn.prepare import prepare
from nsbox._tools import shell as tools_shell

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsbox._policy.policy import Policy
    from nsbox._tools.view import View

NETWORK = re.compile(
    r"Network is (?:unreachable|down)|[Cc]ould not resolve (?:host|proxy)|Temporary failure (?:in name resolution|"
    r"resolving)|Name or service not known|nodename nor servname|EAI_(?:AGAIN|FAIL)|ENETUNREACH|ENOTFOUND|"
    r"No address associated with hostname|Name does not resolve|UnknownHostException|no such host|"
    r"failed to lookup address|Cannot assign requested address|Failed to establish a new connection|"
    r"network is unreachable|[Tt]emporary failure in name lookup|dns error|getaddrinfo"
)
UNREACHED = re.compile(
    r"[Nn]etwork is unreachable|ENETUNREACH|[Nn]o route to host|EHOSTUNREACH|[Cc]onnection refused|ECONNREFUSED|"
    r"(?:Could not|Couldn't|Failed to|Can't|unable to) connect"
)
OFF = (
    "the network is off in this sandbox (network='none'); the caller can allow hosts, such as "
    "network=['api.example:443']"
)
_CONNECT = re.compile(r"(?:Could not|Couldn't|[Ff]ailed to|Can't|[Uu]nable to) connect to ")
_OWN = re.compile(r"\blocalhost\b|\b127\.\d|\[?::1\b|\.sock\b|unix:")
# Programs that wait and try again, often without a word, when there is no network.
_NETWORKERS = re.compile(
    r"(?:^|[\s;&|(/\"'])(?:(?:pip[\d.]*|pipx|poetry|uv|conda|mamba|gem|bundle|cargo|composer|apt|apt-get|dnf|yum|apk|"
    r"brew)\s+(?:\S+\s+){0,3}?(?:install|i|add|update|upgrade|sync|lock|fetch|build|download|create|require|pip|search)"
    r"\b|(?:npm|pnpm|yarn|bun)(?:\s+(?:install|i|ci|add|update|exec|audit|publish)\b|\s*(?:$|[;&|]))|npx\s|"
    r"go\s+(?:get|install|mod|build)\b|git\s+(?:\S+\s+){0,3}?(?:clone|fetch|pull|push|ls-remote|submodule)\b|"
    r"(?:curl|wget|ssh|scp|rsync|nc|ping|telnet|ftp|sftp|docker|podman|kubectl|aws|gcloud|gh)\s|"
    r"(?:mvn|mvnw|gradle|gradlew|sbt)\b)"
)
NAMESPACES = re.compile(
    r"No usable sandbox!|[Nn]o permissions to create (?:a )?new namespace|[Cc]reating new namespace failed|"
    r"[Ff]ailed to move to new namespace|unshare(?:\(\w*\))?(?: failed)?: Operation not permitted|"
    r"unshare failed: (?:Operation not permitted|EPERM)|clone(?:3|\(\w*\))?(?: failed)?: Operation not permitted|"
    r"[Cc]annot clone: Operation not permitted|SUID sandbox helper binary|"
    r"(?:pivot_root|setns|newuidmap|newgidmap)\b[^\n]{0,80}(?:Operation|operation) not permitted|"
    r"user namespaces? (?:are|is) not (?:enabled|supported|available)|cannot (?:set up|create) (?:a )?user ?namespace"
)
# Chromium, with a sandbox of its own, refuses to be root, whatever the policy says: nested=True doesn't help.
_OWN_SANDBOX = re.compile(r"[Rr]unning as root without --no-sandbox is not supported")
ROOT = re.compile(
    r"(?:^|\n)(?:sudo|su|doas|pkexec): |are you root\?|dpkg frontend lock|"
    r"/var/lib/(?:dpkg|apt|rpm|pacman)/\S{0,80}lock|"
    r"[Mm]ust be (?:run as )?(?:root|superuser)(?! to use mount)|superuser privileges|"
    r"run (?:with|under|as) (?:superuser|the root|root)|"
    r"[Nn]eed to be root|requires (?:root|superuser)|[Uu]nable to lock database|only root can|"
    r"requested operation requires superuser"
)
BECOME_ROOT = frozenset({"sudo", "su", "doas", "pkexec"})
_SYSTEM_INSTALLS = (
    (
        re.compile(
            r"externally-managed-environment|"
            r"(?:Errno 30|Errno 13|Read-only file system|Permission denied)[^\n]{0,200}(?:site|dist)-packages|"
            r"(?:site|dist)-packages[^\n]{0,200}(?:Read-only file system|Permission denied|not writ[ea]+ble)"
        ),
        "the Python that pip belongs to is read-only in the sandbox: python3 -m venv .venv && "
        ".venv/bin/pip install ..., in the workspace",
    ),
    (
        re.compile(r"(?:EROFS|EACCES|Read-only file system|Permission denied)[^\n]{0,300}lib/node_modules"),
        "global packages of npm are read-only in the sandbox: install without -g, into the workspace, and use npx",
    ),
    (
        re.compile(
            r"Gem::FilePermissionError|"
            r"don't have write permissions for the \S{0,200}(?:gems|ruby|bin)\S{0,200} directory"
        ),
        "the system's gems are read-only in the sandbox: gem install --install-dir, or bundle config set --local path, "
        "with a directory of the workspace",
    ),
)
EXDEV = re.compile(r"[Ii]nvalid cross-device link|EXDEV|[Cc]ross-device link|across file ?systems|Errno 18\]")
EBUSY = re.compile(r"[Dd]evice or resource busy|EBUSY|[Rr]esource busy(?: or locked)?|Errno 16\]")
TRACING = re.compile(
    r"[Cc]ould not trace the inferior|ptrace(?:\([^)\n]{0,80}\))?: Operation not permitted|"
    r"[Cc]ould not attach to process|linux_check_ptrace_features|PTRACE_\w+[^\n]{0,80}Operation not permitted|"
    r"During startup program exited with code 127"
)
NO_TRACE = (
    "gdb can neither start a program in the sandbox nor attach to one: PTRACE_TRACEME is refused. gdb -p PID, run "
    "outside, can; strace works with seccomp=Filter(allow=['ptrace'])"
)
_NAME = re.compile(r"[\w.+-]{1,64}")
_WORD = re.compile(r"[^\s:;,()<>|&'\"`\u2018\u2019\u201c\u201d=]+")


def symptoms(seen: View, text: str, line: str, shell: str | None, missing: str | None) -> Iterator[tuple[str, str]]:
    """Yield what the output of a failed command is known to mean.

    text: the end of its output.
    line: what was run.
    shell: what read the line, if anything.
    missing: the program that wasn't found, if any.
    """
    policy = seen.policy
    hint = not_bash(line, shell, text, missing)
    if hint is not None:
        yield hint
    if ROOT.search(text) or missing in BECOME_ROOT:
        yield (
            "privileges",
            "nothing in the sandbox can become root, or install packages of the system: install them outside first; "
            "packages of a language go into the workspace",
        )
    for pattern, message in _SYSTEM_INSTALLS:
        if pattern.search(text):
            yield "installation", message
    if not policy.may_nest and NAMESPACES.search(text):
        yield (
            "not-permitted",
            "the program makes a sandbox, or namespaces, of its own: the policy needs nested=True for that",
        )
    if _OWN_SANDBOX.search(text):
        yield (
            "privileges",
            "Chromium refuses to be root with a sandbox of its own, even with nested=True: give it --no-sandbox, since "
            "nsbox is around it, or run nsbox as an ordinary user",
        )
    if TRACING.search(text):
        yield "not-permitted", NO_TRACE
    yield from _file_systems(seen, text)
    yield from network(policy, text)


def not_bash(line: str, shell: str | None, text: str = "", missing: str | None = None) -> tuple[str, str] | None:
    """Return a hint if a line was read by another shell than the one that it was written for; None if it wasn't."""
    if not tools_shell.is_other(shell):
        return None
    what = tools_shell.bashism(line, text, missing)
    if what is None:
        return None
    which = f"{what!r} is bash's" if what else "the line may be written for bash"
    return (
        "not-bash",
        f"{shell} has read the line, and isn't bash; {which}: write it for sh, or put bash in the sandbox (shell_path)",
    )


def network(policy: Policy, text: str) -> Iterator[tuple[str, str]]:
    """Explain that there is no network at all, if that is what a text is about."""
    if policy.network == "none" and (NETWORK.search(text) or _by_number(text)):
        yield "network", OFF


def _by_number(text: str) -> bool:
    """Return whether a program couldn't connect to an address that isn't the sandbox's own."""
    return any(_CONNECT.search(line) and not _OWN.search(line) for line in text.splitlines())


def unreached(text: str) -> Iterator[tuple[str, str]]:
    """Explain, under a network list, failures that the kernel decides inside: no relay has reported any."""
    lines = [line for line in text.splitlines() if UNREACHED.search(line)]
    if any(_OWN.search(line) for line in lines):
        yield (
            "network",
            "127.0.0.1 is the sandbox's own, and nothing may listen there; for a server of this machine, network= "
            "needs 'localhost:PORT'",
        )
    elif lines:
        yield (
            "network",
            "the network list refused nothing. There is no IPv6 in the sandbox, so call hosts by their names; a server "
            "of this machine needs the entry 'localhost:PORT'",
        )


def wants_network(policy: Policy, line: str) -> bool:
    """Return whether a command that took too long, or failed without a word, may have wanted a missing network."""
    return policy.network == "none" and bool(_NETWORKERS.search(line[:1000]))


def _file_systems(seen: View, text: str) -> Iterator[tuple[str, str]]:
    mounted = [path for path in ("/tmp", *seen.policy.write, *seen.policy.read) if seen.mount_of(path).dest == path]
    mounted = [path for path in dict.fromkeys(mounted) if path != "/"]
    if not mounted:
        return
    names = printable(", ".join(mounted[:8]))
    if EXDEV.search(text):
        yield (
            "other-file-system",
            "nothing can be renamed or hard-linked between these, each a file system of its own in the sandbox: "
            f"{names}; copy it, or keep temporary files where they belong in the end (TMPDIR)",
        )
    if EBUSY.search(text):
        start = seen.policy.workdir or "/"
        words = {os.path.normpath(os.path.join(start, word)) for word in _WORD.findall(text)}
        named = [path for path in seen.mounted() if path in words and path != "/"]
        which = printable(", ".join(named[:8])) or names
        yield (
            "mounted",
            f"what is mounted in the sandbox can't be removed, renamed or replaced, only what is in it: {which}",
        )


# ---- programs and files that are outside


def program(seen: View, name: str) -> tuple[str, str]:
    """Return a hint about a program that a command hasn't found: where it is outside, if that is known."""
    tools = seen.policy.tools_bin
    more = f", {tools}" if tools else ""
    none = f"there is no program {name!r} in the sandbox: it has those of this machine's system directories{more}"
    path = _outside(name) if _NAME.fullmatch(name) else None
    if path is None:
        return "missing-program", none
    if not seen.problem(path, write=False)[1]:
        if os.path.dirname(path) in _path_inside(seen.policy):
            removed = "an earlier command may have removed it, or this one has set PATH"
            return (
                "missing-program",
                f"{name!r} is {printable(path)} outside, but the command didn't find it: {removed}",
            )
        return "missing-program", f"{name!r} is {printable(path)} in the sandbox, which isn't in PATH: call it by that"
    led = by_link(seen, path, [one for one in _directories(path) if seen.problem(one, write=False)[1]])
    if led is not None:
        return "missing-program", f"{name!r} is {printable(path)}, which {led}"
    read = ", ".join(repr(directory) for directory in _directories(path))
    return (
        "missing-program",
        f"{name!r} is at {printable(path)} outside, and not in the sandbox: add read=[{printable(read)}] and call it "
        f"by that path, or give {printable(os.path.dirname(path))} as tools_bin",
    )


def _path_inside(policy: Policy) -> list[str]:
    """Return the directories in which the sandbox looks for programs."""
    return prepare(policy, host_for(policy)).environment.directories()


def _homes() -> list[str]:
    """Return the caller's home directories: HOME, and the one that the user database has."""
    homes = [os.environ.get("HOME", "")]
    try:
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    except (KeyError, OSError):
        pass
    return [path.rstrip("/") for path in dict.fromkeys(homes) if path.startswith("/") and path.strip("/")]


_OWN_BINS = (
    *(".cargo/bin", ".local/bin", "bin", "go/bin", ".bun/bin", ".deno/bin", ".volta/bin", ".pyenv/shims"),
    *(".rbenv/shims", ".asdf/shims", ".local/share/mise/shims", ".npm-global/bin", ".ghcup/bin", ".juliaup/bin"),
    *(".dotnet", ".dotnet/tools", ".nix-profile/bin", ".yarn/bin", ".local/share/pnpm"),
)
_SHARED_BINS = ("/usr/local/go/bin", "/snap/bin", "/home/linuxbrew/.linuxbrew/bin", "/opt/homebrew/bin")


def _outside(name: str) -> str | None:
    """Return where the caller has a program: in PATH, or where installers put programs."""
    own = (os.path.join(home, bin) for home in _homes() for bin in _OWN_BINS)
    for directory in dict.fromkeys((*os.environ.get("PATH", "").split(":"), *own, *_SHARED_BINS)):
        path = os.path.join(directory, name)
        if directory.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
            return os.path.normpath(path)
    return None


def _directories(path: str) -> list[str]:
    """Return the directories that a program needs: its own, and what programs there are known to use."""
    directories = []
    for file in (path, os.path.realpath(path)):
        directory = os.path.dirname(file)
        above = os.path.dirname(directory)
        is_prefix = os.path.basename(directory) == "bin" and os.path.isdir(os.path.join(above, "lib"))
        # ~/.local has keyrings and the like beside its lib.
        is_whole = is_prefix and above not in ("/", "/usr") and not above.endswith("/.local")
        directories.append(above if is_whole else directory)
    if path.rpartition("/")[0].endswith("/.cargo/bin"):
        directories.append(os.path.join(os.path.dirname(path).removesuffix("/.cargo/bin"), ".rustup"))
    elif os.path.basename(os.path.dirname(path)) == "shims":
        directories.append(os.path.dirname(os.path.dirname(path)))
    directories = list(dict.fromkeys(directories))
    return [one for one in directories if not any(one != other and is_below(one, other) for other in directories)]


def by_link(seen: View, path: str, read: Sequence[str] = ()) -> str | None:
    """Return what to say about a path that a link leads out of the sandbox, as packages' links from /usr do.

    Returns None if the sandbox shows no link on the way, or if commands can have made one: a path that they name is no
    advice.

    read: the paths to add to read=. Default: where the link leads.
    """
    path = os.path.normpath(path)
    links = [link for link in links_on(path)[1] if seen.mount_of(link).source is not None]
    if not links or any(seen.mount_of(link).is_writable for link in links):
        return None
    real = os.path.realpath(links[-1])
    problem = seen.problem(real, write=False)[1]
    if not problem:
        return None
    how = "is a link" if links[-1] == path else f"leads by the link {printable(links[-1])}"
    led = f"{how} to {printable(real)}, which"
    if not os.path.lexists(real):
        return f"{led} isn't there outside of the sandbox either"
    if "hidden" in problem:
        return f"{led} {printable(problem)}"
    is_wide = real == "/" or any(is_below(home, real) for home in _homes())
    names = printable(", ".join(repr(one) for one in read or [real]))
    return f"{led} isn't in the sandbox" + ("" if is_wide else f": add read=[{names}]")


def by_dots(seen: View, path: str) -> str | None:
    """Return a hint about a path whose ".." leads through a directory that the sandbox lacks, to what it has.

    Returns None for other paths.
    """
    plain = os.path.normpath(path)
    if ".." not in path.split("/") or os.path.realpath(plain) != os.path.realpath(path):
        return None
    if seen.problem(plain, write=False)[1] or not os.path.lexists(plain):
        return None
    missing = seen.place(path).inside
    return f"{path!r} leads through {missing!r}, which isn't in the sandbox; {plain!r} is: name that"


def in_home(seen: View, text: str) -> tuple[str, str] | None:
    """Return a hint about a path below the caller's own home that the text names, and that the sandbox doesn't have."""
    homes = _homes()
    for word in _WORD.findall(text):
        path = os.path.normpath(word.rstrip(".")) if word.startswith("/") else ""
        if not any(path != home and is_below(path, home) for home in homes):
            continue
        try:
            problem = seen.problem(path, write=False)[1]
        except (OSError, ValueError):
            continue
        if problem:
            home = f"commands have HOME={printable(seen.policy.home)}; " if seen.policy.home else ""
            return (
                "outside",
                f"{path!r} lies in your home directory, and {printable(problem)}; {home}{seen.allowed(write=False)}",
            )
    return None
