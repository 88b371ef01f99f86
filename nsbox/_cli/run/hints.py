"""Why the command of `nsbox run` may have failed, with the option that would help: a line each.

The hints are those of ToolResult.why (_tools.hints); only their words are the command line's. A command on a terminal
of its own is judged by what it has shown there too, unless something was typed: then the screen tells a long story.
In a pipe or a file its output is its own, and nsbox judges by how it ended.

Imported after a failure, so that no start waits for it.
"""

from __future__ import annotations

import re

from nsbox._base.errors import NsboxError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._cli.policy import in_options, option
from nsbox._cli.run.network import refusals
from nsbox._tools.hints import reasons

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nsbox._cli.run.job import Job
    from nsbox._policy.policy import Policy

_MOST = 3
# Names in hints that in_options() leaves alone, since there they can be words for a loss.
_NAMES = (
    (re.compile(r"\blimits\.([a-z_]+)"), lambda name: option(name[1])),
    (re.compile(r"\b(?:tmp_size|tools_bin)\b"), lambda name: option(name[0])),
    (re.compile(r"\bnetwork=(?=\s)"), lambda _: "--allow-net"),
    (re.compile(r"(--(?:memory|total-memory|file-size) \d+) ([KMGT])iB"), lambda found: f"{found[1]}{found[2]}"),
    (
        re.compile(r"; the caller can allow hosts, such as --allow-net \S+"),
        lambda _: "; --allow-net HOST lets it connect",
    ),
    (re.compile(r", or put bash in the sandbox \(shell_path\)"), lambda _: ""),
)
_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[()][0-9A-B]|[=>])")
# What a hint's kind says nothing of: the option that would allow it, and the key of a configuration file.
_REMEDIES = {
    "read-only": ("--write PATH lets it write there", "writable_paths lets it write there"),
    "outside": ("--read PATH lets it read there", "readable lets it read there"),
    "network": ("--allow-net HOST lets it connect", "network lists where it can connect"),
}


def hints(
    policy: Policy, job: Job, output: str, *, command: Sequence[str], line: str | None, is_from_file: bool
) -> tuple[str, ...]:
    """Return a few sentences about why a command may have failed: first what was refused. () if nothing is known.

    output: the end of what it has shown on its terminal; "" if that isn't known.
    command: the program and its arguments. line: the shell line that the program reads, if it is a shell for one.
    is_from_file: whether the policy is a file's, whose keys the user writes instead of options.
    """
    contained, refused = job.sandbox, refusals(policy, job)
    try:
        found = reasons(
            policy,
            job.returncode or 0,
            "",
            _ESCAPE.sub("", output),
            cwd=job.directory,
            usage=None if contained is None else contained.usage,
            ending=None,
            args=command if line is None else line,
            shell=None if line is None else command[0],
        )
    except (NsboxError, OSError):  # what the policy names is gone; the command's status is what counts
        found = ()
    known = {"timeout", "crash"}  # Work.finish() says the first, and the status the second
    if job.was_killed:  # by us, as the user has asked
        known.add("killed")
    if refused:
        known.add("network")
    texts = [_spelled(hint.kind, hint.message, is_from_file=is_from_file) for hint in found if hint.kind not in known]
    return (*refused, *dict.fromkeys(texts[:_MOST]))


def _spelled(kind: str, text: str, *, is_from_file: bool) -> str:
    """Return a hint's text in the words that the user has written, with what would allow it."""
    option, key = _REMEDIES.get(kind, ("", ""))
    if not is_from_file:
        text = in_options(text)
        for pattern, spelled in _NAMES:
            text = pattern.sub(spelled, text)
    remedy = key if is_from_file else option
    is_said = not remedy or "is hidden" in text or remedy.split()[0] in text or "add " in text
    return text if is_said else f"{text}; {remedy}"
