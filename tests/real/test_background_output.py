"""What goes on in the background of a session prints into a file there, whoever has read the pipe before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from nsbox import Dev, Policy, RoBind, Sandbox, Session

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


def test_more_than_there_is_room_for(s: Session) -> None:
    results = [s.shell("sleep 1000 &") for _ in range(66)]
    assert [result.background_output is None for result in results] == [False] * 64 + [True] * 2
    assert "nobody reads" in results[-1].why[0].message
    assert s.shell("echo on").stdout == "on\n"


def test_a_flood_holds_nobody_up(s: Session) -> None:
    s.shell("yes &")
    assert s.shell("echo on").stdout == "on\n"
    assert s.shell("sleep 1000", timeout=0.3, grace=0).timed_out
