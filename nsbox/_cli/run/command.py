"""`nsbox run` and `nsbox shell`: a command in a sandbox, with the caller's terminal, signals and exit status."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any

from nsbox._base.display import printable
from nsbox._base.errors import NsboxError, PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._cli.messages import complain, of_chdir, say
from nsbox._cli.policy import policy_of, record_of
from nsbox._cli.run.job import Job, NotStarted, started
from nsbox._cli.run.network import Extras, Wiring, extras_of, recorded, wiring
from nsbox._policy.policy import Policy
from nsbox._popen.story import Attempt

if TYPE_CHECKING:
    from nsbox._cli.progress import Progress
    from nsbox._spawn.way import Keeper
    from nsbox.transaction import Transaction

_STREAMS = ("stdin", "stdout", "stderr")


def main(options: argparse.Namespace) -> int:
    """Run the command; return its exit status, 128+N after signal N.

    2: the options are wrong. 124: it took longer than --timeout. 125: the sandbox can't be made. 126: the program can't
    be executed. 127: there is no such program.
    """
    record_of(options)
    with Attempt("command", _wished(options), cwd=options.chdir):
        policy = policy_of(options)
        extras = extras_of(options, policy)
        policy = recorded(policy, extras)
    work = Work(_command(options, policy), policy, options, extras)
    terminals = [fd for fd in range(3) if _is_terminal(fd)]
    is_kept = not policy.new_session and not (options.host and not options.keep_session)
    if terminals and not is_kept:
        from nsbox._cli.run import bridge

        work.policy = policy.with_(new_session=False)  # the command is in the monitor's session
        return bridge.run(work, terminals)
    from nsbox._cli.run import direct

    try:
        job, keys = direct.run(work.start, has_session=policy.new_session, is_session_ours=is_kept)
        status = work.finish(job, "")
    except (NotStarted, NsboxError, OSError) as error:
        return work.fail(error)
    direct.end_as_typed(job.returncode or 0, group=-(job.returncode or 0) in keys)
    return status


def _is_terminal(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _wished(options: argparse.Namespace) -> list[str]:
    """Return the command as far as the options say it, for a record: the shell depends on the policy."""
    words: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    line = [] if options.line is None else ["-c", options.line, *(["sh"] if words else [])]
    return [*(["sh", *line] if line or options.work == "shell" else []), *words]


def _command(options: argparse.Namespace, policy: Policy) -> list[str]:
    words: list[str] = options.command[1:] if options.command[:1] == ["--"] else options.command
    if options.work == "shell":
        return [_users_shell(policy), *words]
    if options.line is not None:
        return [_shell(policy), "-c", options.line, *(["sh", *words] if words else [])]
    if not words:
        options.parser.error("no command")
    return words


def _shell(policy: Policy) -> str:
    """Return bash if the sandbox has it: most shell lines that people write are for bash."""
    return next((path for path in ("/bin/bash", "/usr/bin/bash") if _is_there(policy, path)), "/bin/sh")


def _users_shell(policy: Policy) -> str:
    """Return the caller's own shell, if the sandbox has it."""
    path = os.environ.get("SHELL", "")
    if not path:
        import pwd

        with contextlib.suppress(KeyError):  # a user that isn't in the database
            path = pwd.getpwuid(os.getuid()).pw_shell
    refusing = os.path.basename(path) in ("nologin", "false", "")
    return path if not refusing and _is_there(policy, path) else _shell(policy)


def _is_there(policy: Policy, path: str) -> bool:
    try:
        return os.access(path, os.X_OK) and (policy.base == "host" or policy.can_read(path))
    except (NsboxError, OSError):
        return False


def give_terminal(policy: Policy, fds: list[Any]) -> None:
    """Make a command the owner of the terminal that was made for it, if its kernel ids differ from ours.

    fds: its streams; those that are descriptors are the terminal's.
    """
    terminals = {fd for fd in fds if isinstance(fd, int)}
    if terminals:
        from nsbox._lookup.host import host_for
        from nsbox._popen import pty
        from nsbox._spawn.prepare import prepare

        kernel_id = prepare(policy, host_for(policy)).plan.kernel_id
        for fd in terminals:
            pty.give(fd, kernel_id)


def losses_of(policy: Policy) -> list[str]:
    """Return a line for each loss that the policy accepts and has here; raises what a start under it raises.

    Where nothing is contained, one warning has said so.
    """
    if not policy.degrade and policy.require != "nothing":
        return []
    from nsbox._lookup.host import host_for
    from nsbox._policy.losses import Losses
    from nsbox._spawn.prepare import prepare

    plan = prepare(policy, host_for(policy)).plan
    names = () if plan.backend == "passthrough" else sorted(plan.lost)
    return [f"lost here: {Losses({name}).details()}" for name in names]


class Work:
    """The work of the process that starts the command."""

    def __init__(self, command: list[str], policy: Policy, options: argparse.Namespace, extras: Extras) -> None:
        """Hold what the options say; nothing is checked or done yet."""
        self.command, self.policy = command, policy
        self._options, self._extras = options, extras
        self._transaction: Transaction | None = None
        self._wiring: Wiring | None = None

    def start(self, **options: Any) -> Job:
        """Return the started command; raises NotStarted, PolicyError and UnavailableError."""
        words = self._options
        options |= {"cwd": words.chdir, "timeout": words.timeout, "grace": words.grace}
        give_terminal(self.policy, [options.get(name) for name in _STREAMS])
        try:
            with Attempt("command", self.command, policy=self.policy, cwd=words.chdir):
                policy = self._keeper()
            return started(self.command, lambda: Job(self.command, policy=policy, **options))
        except BaseException:
            self._drop()
            raise

    def _keeper(self) -> Policy | Keeper:
        """Make the log, the published ports and the transaction; return what starts the command under them."""
        self._wiring = wiring(self.policy, self._extras)
        way = None if self._wiring is None else self._wiring._open_way()
        own, relay = (self.policy, None) if way is None else (way.policy, way.relay)
        if not self._options.quiet:
            for text in losses_of(own):
                say(text)
        if not (self._options.transaction or self._options.diff):
            return self.policy if self._wiring is None else self._wiring
        from nsbox.transaction import Transaction

        try:
            self._transaction = Transaction(own, None, None, relay)
        except OSError as error:
            if error.filename is not None and not isinstance(error, NsboxError):
                error.add_note("changes are kept there: set XDG_STATE_HOME to a directory of yours")
            raise
        return self._transaction

    def finish(self, job: Job, output: str) -> int:
        """Return the exit status, after showing a transaction's changes, and committing or dropping them.

        output: the end of what the command has shown on its terminal; "" if that isn't known.
        """
        status = job.status
        words = self._options
        if status != 0 and not words.quiet and words.work != "shell":  # a shell has shown its commands' failures
            for text in self._why(job, output):
                say(text)
        self._unwire()
        if job.timed_out:
            complain(PolicyError("--timeout", f"the command was ended after {self._options.timeout:g} s"), status)
        if self._transaction is None:
            return status
        try:
            if self._options.diff:
                self._show()
            if self._options.transaction and status == 0:
                self._commit()
            elif self._options.transaction:
                complain(PolicyError("--transaction", f"nothing was changed: the exit status is {status}"), status)
        finally:
            self._drop()
        return status

    def _why(self, job: Job, output: str) -> tuple[str, ...]:
        """Return what the policy refused to a failed command, or what it may have lacked: a sentence each."""
        from nsbox._cli.run.hints import hints

        words = self._options
        is_from_file = words.policy is not None
        return hints(self.policy, job, output, command=self.command, line=words.line, is_from_file=is_from_file)

    def _commit(self) -> None:
        assert self._transaction is not None
        progress: Progress | None = None

        def tell(done: int, total: int, path: str) -> None:
            nonlocal progress
            if progress is None:
                from nsbox._cli.progress import Progress

                progress = Progress(total, delay=1.0)
            progress.show(done, printable(path))

        try:
            self._transaction.commit(on_progress=tell if _is_terminal(2) else None)
        finally:
            if progress is not None:
                progress.__exit__(None, None, None)

    def _show(self) -> None:
        assert self._transaction is not None
        is_seen = _is_terminal(1)
        sys.stdout.flush()
        sys.stdout.buffer.write(os.fsencode(self._transaction.patch(escaped=is_seen)))
        sys.stdout.flush()

    def _unwire(self) -> None:
        wiring, self._wiring = self._wiring, None
        if wiring is not None:
            wiring.end()

    def _drop(self) -> None:
        self._unwire()
        if self._transaction is not None:
            self._transaction.discard()

    def fail(self, error: BaseException) -> int:
        """Report an error; return the exit status for it."""
        self._drop()
        if isinstance(error, NotStarted):
            named = of_chdir(error.error, self._options.chdir)
            return complain(named, error.status, is_from_file=self._options.policy is not None)
        if isinstance(error, NsboxError):
            status = 2 if isinstance(error, PolicyError) else 125
            return complain(error, status, is_from_file=self._options.policy is not None)
        if isinstance(error, OSError):
            return complain(error, 125)
        import traceback  # for a bug of ours

        traceback.print_exception(error)
        return 125
