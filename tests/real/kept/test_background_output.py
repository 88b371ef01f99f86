"""What goes on in the background of a session prints into a file there, no matter what has read the pipe before."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from nsbox import Dev, Policy, RoBind, Sandbox, Session
from nsbox._kept.pipes import Unread

LOG = "/tmp/nsbox-output-"


@pytest.fixture
def s(policy: Policy) -> Iterator[Session]:
    with Sandbox(policy, stock=0) as box, box.session() as made:
        yield made


def until(s: Session, line: str) -> str:
    """Run a line until it succeeds; return what it prints."""
    while (result := s.shell(line)).returncode:
        pass
    return result.stdout


SERVER = (
    "until [ -e /tmp/go ]; do sleep 0.02; done; echo serving; echo trouble >&2; echo $? > /tmp/status; exec sleep 1000"
)


@pytest.mark.parametrize("line", [f"({SERVER}) & echo started", f"(setsid sh -c '{SERVER}' &); echo started"])
def test_a_server_goes_on_printing(s: Session, line: str) -> None:
    """Without a redirection: its first line after the command's end neither fails nor is lost."""
    result = s.shell(line)
    assert (result.returncode, result.stdout, result.background_output) == (0, "started\n", f"{LOG}1.log")
    assert [hint.kind for hint in result.why] == ["background"]
    assert f"{LOG}1.log" in result.why[0].message
    assert result.as_dict()["background_output"] == f"{LOG}1.log"
    s.shell(": > /tmp/go")
    assert until(s, "cat /tmp/status") == "0\n"
    assert sorted(until(s, f"grep -q trouble {LOG}1.log && cat {LOG}1.log").split()) == ["serving", "trouble"]
    assert s.shell(f"stat -c %a {LOG}1.log").stdout == "600\n"


def test_it_is_bounded(s: Session) -> None:
    """The beginning and what came last stay."""
    result = s.shell("(until [ -e /tmp/go ]; do sleep 0.02; done; seq 1000000; echo end) &")
    s.shell(": > /tmp/go")
    log = result.background_output
    assert until(s, f"tail -n1 {log} | grep end") == "end\n"
    assert s.shell(f"head -n2 {log}").stdout == "1\n2\n"
    assert s.shell(f"grep -ac 'bytes left out' {log}").stdout == "1\n"
    assert int(s.shell(f"stat -c %s {log}").stdout) <= 1 << 20


def test_nothing_is_said_of_what_prints_elsewhere(s: Session) -> None:
    for line in ("sleep 1000 >/dev/null 2>&1 &", "echo x", "sleep 1000 >/tmp/log 2>&1 </dev/null &"):
        result = s.shell(line)
        assert (result.background_output, result.why) == (None, ())


def test_a_name_that_is_taken(s: Session) -> None:
    """Another command may have made something there, a link out of /tmp too: a new file is made."""
    s.shell(f"ln -s $PWD/stolen {LOG}1.log; mkfifo {LOG}2.log; mkdir {LOG}3.log")
    assert s.shell("sleep 1000 &").background_output == f"{LOG}4.log"
    assert s.shell("ls").stdout == ""


def test_secrets_are_not_kept(s: Session) -> None:
    """They would be masked no more."""
    result = s.shell("sleep 1000 &", secrets={"TOKEN": "a-secret-of-some-length"})
    assert result.background_output is None
    assert "secrets" in result.why[0].message


def test_a_tmp_that_isnt_its_own() -> None:
    """No file is made where the host would keep it."""
    policy = Policy.layers(RoBind("/", "/"), Dev("/dev"))
    with Sandbox(policy, stock=0) as box, box.session() as s:
        result = s.shell("(sleep 0.1; echo x; sleep 1000) & :")
        assert result.background_output is None
        assert result.why[0].kind == "background"


def fill(s: Session) -> list[int]:
    """Have commands leave more running than is kept; return of how many it is read, open, or closed."""
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: s.shell("sleep 1000 &"), range(100)))
    messages = [result.why[0].message for result in results]
    assert all(
        (LOG in message) == bool(result.background_output) for message, result in zip(messages, results, strict=True)
    )
    return [sum(word in message for message in messages) for word in (LOG, "nothing reads", "can't print any more")]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_more_than_there_is_room_for(s: Session) -> None:
    """64 outputs are read, 32 more are kept open; after that, a hint says that what a command leaves can't print."""
    before = descriptors()
    assert fill(s) == [64, 32, 4]
    most = descriptors()
    assert most - before <= 64
    for line in ("sleep 1000 &", "sleep 1000 2>/dev/null &", "setsid sleep 1000 &"):
        result = s.shell(line)
        assert (result.returncode, result.background_output) == (0, None)
        assert [hint.kind for hint in result.why] == ["background"]
        assert "can't print any more" in result.why[0].message
    assert descriptors() == most
    assert s.shell("echo on").stdout == "on\n"
    s.close()
    assert descriptors() < before


def test_what_is_beyond_is_told_the_truth(s: Session) -> None:
    """Its first line is an error; a shell that ignores SIGPIPE sees that. What is within the bound isn't disturbed."""
    s.shell("(until [ -e /tmp/go ]; do sleep 0.02; done; echo x; echo $? > /tmp/first) & :")
    assert fill(s) == [63, 32, 5]
    s.shell("trap '' PIPE; (until [ -e /tmp/go ]; do sleep 0.02; done; echo x; echo $? > /tmp/last) & :")
    s.shell(": > /tmp/go")
    assert until(s, "cat /tmp/first && grep . /tmp/first") == "0\n0\n"
    assert until(s, "cat /tmp/last && grep . /tmp/last") != "0\n0\n"


@pytest.mark.parametrize("line", ["sleep 1000", "setsid sleep 1000 2>/dev/null"])
def test_what_has_ended_makes_room(s: Session, line: str) -> None:
    """However many there were before: those whose processes are gone count no more, here and in the session."""
    fill(s)
    s.shell("pkill sleep; while pgrep sleep; do :; done")
    most = descriptors()
    for _ in range(3):
        assert s.shell(f"{line} &").why[0].message
    assert s.shell(f"{line} &").background_output is not None
    assert descriptors() < most


def test_a_caller_without_free_descriptors() -> None:
    """If no descriptor is free to keep a pipe open, it isn't kept; that is reported, and is no error."""
    kept = Unread()
    reader, writer = os.pipe()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (writer + 1, hard))
    try:
        assert not kept.keep([reader, reader])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert kept.keep([reader])
    kept.close()
    os.close(reader)
    os.close(writer)


def test_a_flood_holds_nobody_up(s: Session) -> None:
    s.shell("yes &")
    assert s.shell("echo on").stdout == "on\n"
    assert s.shell("sleep 1000", timeout=0.3, grace=0).timed_out
