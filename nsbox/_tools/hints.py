"""Why a command may have failed, in the words of its policy, judging by what it has left: status, output, usage.

These are guesses, from the messages that programs print for an errno. They are for the agent, or person, who has to try
something else. What is certain comes first, then what is only likely.
"""

from __future__ import annotations

import os
import re
import signal

from nsbox._base.display import printable, type_phrase
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._layout import owner
from nsbox._lookup.host import host_for
from nsbox._network.log import NetworkRecord
from nsbox._network.network import Network
from nsbox._policy.policy import Policy
from nsbox._tools import shell as tools_shell
from nsbox._tools import space, symptoms
from nsbox._tools.verdicts import Ending, Hint, ended, limited, network_hints
from nsbox._tools.view import view

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from nsbox._lifetime.usage import Usage
    from nsbox._tools.view import View

READ_ONLY = re.compile(r"[Rr]ead-only file ?system|EROFS")
DENIED = re.compile(r"[Pp]ermission denied|EACCES")
MISSING = re.compile(r"No such file or directory|ENOENT")
NOT_PERMITTED = re.compile(r"Operation not permitted|EPERM")
_QUOTED = re.compile("['\"`\u2018\u201c]([^'\"`\u2018\u2019\u201c\u201d\n]{1,4096})['\"`\u2019\u201d]")
_WORD = re.compile(r"[^\s:;,()<>|&'\"]+")
_SHELL = re.compile(r"^[^\s:]+: (?:line )?\d+: (?:cannot (?:create|open) )?")  # the shell that says it, and the line
_LINES = 400
_CHARS = 1 << 16  # at the end of each stream
_LOOKS = 64  # at paths, in all
_LONGEST = 1024  # characters of such a path
_PATHS = 5


def hints(
    policy: Policy,
    returncode: int,
    stdout: str = "",
    stderr: str = "",
    *,
    args: str | Sequence[str] = (),
    shell: str | None = None,
    cwd: str | None = None,
    usage: Usage | None = None,
    network: NetworkRecord | None = None,
    timeout: float | None = None,
) -> tuple[Hint, ...]:
    """Return what in a policy may have made a command fail, as ToolResult.why has it; () if it hasn't failed.

    The status of a shell's line is that of its last command. So if the status is 0 and you name the shell, this returns
    what stderr says was refused on the way, and which limits it speaks of.

    This is for a command that you started with Popen or run(). Records of shell() and exec() have their hints already.

    policy: what the command ran under.
    returncode: as Popen.returncode. stdout, stderr: what it printed, or the end of that. Default: "".
    args: the command line, or the program and its arguments. Default: none; then some hints are missing.
    shell: the program that read the command line, if one did. Default: None.
    cwd: the directory that it started in. Default: None, for the policy's.
    usage, network: `usage` and `network` of Popen.sandbox. Default: None.
    timeout: the time limit in seconds, if you have ended it for taking too long. Default: None.

    Raises TypeError for a policy or an output of another type.
    """
    if not isinstance(policy, Policy):
        raise TypeError(f"policy is {type_phrase(policy)}, must be an nsbox.Policy")
    for name, output in (("stdout", stdout), ("stderr", stderr)):
        if not isinstance(output, str):
            raise TypeError(f"{name} is {type_phrase(output)}, must be a str")
    ending = None
    if timeout is not None:
        by = "SIGKILL" if returncode == -signal.SIGKILL else "SIGTERM"
        ending = Ending(timeout, by, 0.0, in_session=False)
    log = NetworkRecord() if network is None else network
    return reasons(
        policy,
        returncode,
        stdout,
        stderr,
        cwd=cwd,
        usage=usage,
        ending=ending,
        args=args,
        shell=shell,
        network=log,
    )


def reasons(
    policy: Policy,
    status: int,
    stdout: str,
    stderr: str,
    *,
    cwd: str | None,
    usage: Usage | None,
    ending: Ending | None,
    args: str | Sequence[str] = (),
    shell: str | None = None,
    network: NetworkRecord = NetworkRecord(),  # noqa: B008  (frozen)
) -> tuple[Hint, ...]:
    """Return what may have made a command fail, or what was refused in a line that succeeds at last; else ().

    cwd: its working directory, as the caller gave it. usage: None if it wasn't started.
    ending: how it was ended, if it took too long.
    args: what was run.
    shell: what read it as a line. If it isn't bash, a line written for bash may succeed and still do something else.
    network: what it has tried, under a network list.
    """
    line = args if isinstance(args, str) else " ".join(args)
    if status == 0 and ending is None:
        other = symptoms.not_bash(line, shell)
        if other is not None:
            return (Hint(*other),)
        return () if shell is None else tuple(dict.fromkeys(_on_the_way(policy, stderr, cwd, network)))
    seen = view(policy)
    text = "\n".join([*stdout[-_CHARS:].splitlines()[-50:], *stderr[-_CHARS:].splitlines()[-_LINES:]])
    start = cwd or policy.workdir or "/"
    found = list(ended(policy, status, usage, ending))
    found += [*limited(policy, text, found), *space.full(seen, text, start)]
    wish: object = policy.network
    if isinstance(wish, Network):
        hints = network_hints(wish, network.events)
        found += hints or [Hint(*row) for row in symptoms.unreached(text)]
    missing = _missing(status, text)
    found += [Hint(*row) for row in symptoms.symptoms(seen, text, line, shell, missing)]
    if missing is not None and _is_program(missing, shell):
        found.append(Hint(*symptoms.program(seen, missing)))
    if (ending is not None or not text.strip()) and symptoms.wants_network(policy, line):  # or curl -s
        found.append(Hint("network", f"the command may have wanted the network: {symptoms.OFF}"))
    found += _paths(seen, text, start)
    if not any(hint.kind in ("outside", "read-only") for hint in found):
        found += [Hint(*row) for row in [symptoms.in_home(seen, text)] if row is not None]
    if "not a git repository" in text and policy.base == "workspace":
        from nsbox._paths.git import notes  # seldom needed

        found += [Hint("git", line) for line in notes(policy.write, policy.deny)]
    found += _of_owner(policy, text, start)
    if NOT_PERMITTED.search(text) and not found and seen.refuses_by_eperm:
        message = (
            "the sandbox refused something; the system's log says what: log stream --predicate 'sender == \"Sandbox\"'"
        )
        found.append(Hint("not-permitted", message))
    elif NOT_PERMITTED.search(text) and not found:
        message = f"commands have no capabilities, and system calls are filtered (seccomp={_profile(policy)!r})"
        found.append(Hint("not-permitted", message))
    return tuple(dict.fromkeys(found))


def _on_the_way(policy: Policy, stderr: str, cwd: str | None, network: NetworkRecord) -> Iterator[Hint]:
    """Yield what was refused, or limited, in a line that succeeds at last, as in `cat .env; ls` and `curl URL || true`.

    It is what programs complain of to stderr. A program that does without a file, or a host, says nothing of that.
    """
    lines = stderr[-_CHARS:].splitlines()[-_LINES:]
    text, start = "\n".join(lines), cwd or policy.workdir or "/"
    yield from limited(policy, text)
    yield from space.full(view(policy), text, start)
    refused = "\n".join(line for line in lines if READ_ONLY.search(line) or DENIED.search(line))
    if refused:
        found = _paths(view(policy), refused, start)
        yield from (hint for hint in found if hint.kind in ("outside", "read-only"))
    yield from limited(policy, "\n".join(lines))
    if isinstance(policy.network, Network):
        if any(symptoms.NETWORK.search(line) or symptoms.UNREACHED.search(line) for line in lines):
            yield from network_hints(policy.network, network.events)
    else:
        yield from (Hint(*row) for row in symptoms.network(policy, text))


def _profile(policy: Policy) -> str:
    return policy.seccomp if isinstance(policy.seccomp, str) else policy.seccomp.base


def _of_owner(policy: Policy, text: str, start: str) -> Iterator[Hint]:
    """Yield what to do about another user's files."""
    if "dubious ownership" in text:
        match = re.search(r"dubious ownership in repository at '([^'\n]{1,1024})'", text)
        yield Hint("owner", owner.dubious(policy, host_for(policy), printable(match.group(1) if match else start)))
    elif DENIED.search(text) and (instead := owner.remedy(policy, host_for(policy), start)):
        yield Hint("owner", instead)


def _missing(status: int, text: str) -> str | None:
    """Return the name of the program that wasn't found, if that is why the command failed."""
    if status not in (126, 127):
        return None
    match = re.search(r"(?:^|[\s:])([^\s:]{1,255}): (?:command )?not found", text)
    if match is None and status == 127:
        match = re.match(r"([^:\s]{1,255}): No such file", text)
    return None if match is None else match.group(1)


def _is_program(name: str, shell: str | None) -> bool:
    """Return whether what wasn't found may be a program, and not a word of the shell's or a way to become root."""
    is_word = shell is not None and (name in tools_shell.BUILTINS or name.isdecimal())
    return name not in symptoms.BECOME_ROOT and not is_word


def no_shell(shells: Sequence[str]) -> Hint:
    """Return the hint for a shell that can't be started."""
    return Hint("missing-program", f"the sandbox has no shell: {', '.join(shells)}; shell_path names another")


def _paths(seen: View, text: str, start: str) -> Iterator[Hint]:
    """Yield hints about the paths in messages, from what the policy says of each."""
    count, looks = 0, iter(range(_LOOKS))
    for line in text.splitlines():
        write = bool(READ_ONLY.search(line))
        denied, missing = bool(DENIED.search(line)), bool(MISSING.search(line))
        denied = denied or (seen.refuses_by_eperm and bool(NOT_PERMITTED.search(line)))
        if count >= _PATHS or not (write or denied or missing):
            continue
        reason = _of_line(seen, line, start, looks, write=write, denied=denied)
        if reason is not None:
            count += 1
            yield reason


def _of_line(seen: View, line: str, start: str, looks: Iterator[int], *, write: bool, denied: bool) -> Hint | None:
    for path, _ in zip(_named(line, start), looks, strict=False):
        try:
            place, problem = seen.problem(path, write=write)
            is_read_only = bool(seen.problem(path, write=True)[1])
        except (OSError, ValueError):
            continue
        led = symptoms.by_dots(seen, path) if problem and place.here is None else None
        path = os.path.normpath(path)
        if led is not None:
            return Hint("outside", led)
        exists = place.here is not None and os.path.lexists(place.here)
        if seen.is_denied(place) and not (write or denied or os.path.lexists(path)):
            return None  # it isn't there outside either
        if not exists and len(path.split()) > 1:  # a reader could mistake such text for nsbox's own words
            continue
        shown = repr(path)
        if problem and (write or denied or place.here is None):
            led = symptoms.by_link(seen, path) if "read-only" not in problem else None
            if led is not None:
                return Hint("outside", f"{shown} {led}; {seen.allowed(write=write)}")
            kind = "read-only" if "read-only" in problem else "outside"
            return Hint(kind, f"{shown} {printable(problem)}; {seen.allowed(write=write)}")
        if denied and is_read_only and seen.refuses_by_eperm:
            return Hint("read-only", f"{shown} is read-only in the sandbox; {seen.allowed(write=True)}")
        if denied and exists:
            more = f", or it is read-only; {seen.allowed(write=True)}" if is_read_only else ""
            return Hint("permissions", f"the permissions of {shown} don't allow that{more}")
    if write:
        return Hint("read-only", f"something that it wanted to write to is read-only; {seen.allowed(write=True)}")
    return None


def _named(line: str, start: str) -> list[str]:
    """Return what may be paths in a message: quoted text, words with a slash, and the word before the error."""
    candidates = _QUOTED.findall(line)
    line = _SHELL.sub("", line)
    before = re.split(r": (?=[^:]*$)", line)[0]
    words = _WORD.findall(before)
    candidates += [word for word in _WORD.findall(line) if "/" in word] + words[-1:]
    return [
        os.path.join(start, path) for path in dict.fromkeys(candidates) if 0 < len(path) < _LONGEST and "\0" not in path
    ][:8]
