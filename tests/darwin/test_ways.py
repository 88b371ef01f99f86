"""Three ways to put on the same profile, of which the first that a Mac has is taken: each of them contains.

compiled: the profile is compiled in the caller, and applied by the child. helper: by a program of ours, which is told
it. sandbox-exec: by the system's own program.
"""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from nsbox_darwin import allowed, attempt, control, python, refused

import nsbox
from nsbox._base.frozen import replace
from nsbox._machine import probe

pytestmark = pytest.mark.darwin

WAYS = ("compiled", "helper", "sandbox-exec")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The one way that there is: what the probe has found is cut down to it, which is all that a spawn asks."""
    name: str = request.param
    # The field and its values are those of nsbox._plan.host.Host; nothing else of the machine changes.
    host = probe.probe()
    assert name in host.seatbelt_ways, "this Mac lacks it; no Mac that is supported does"
    only: Any = replace(host, seatbelt_ways=(name,))
    monkeypatch.setattr(probe, "probe", lambda *, refresh=False: only)
    monkeypatch.setattr("nsbox._lookup.host.probe", lambda *, refresh=False: only)
    return name


def test_it_contains(way: str, policy: nsbox.Policy, workspace: Path, outside: Path) -> None:
    """The workspace is writable, and what is outside can't be read."""
    read = attempt("open(args[0])", outside / "secret")
    control(read)
    refused(read, policy)
    assert allowed(["/bin/sh", "-c", "echo made >new && cat new"], policy) == "made\n"


def test_it_denies(way: str, workspace: Path, twin: Path) -> None:
    """A denied file is denied."""
    for place in (workspace, twin):
        (place / ".env").write_text("secret\n")
    control(attempt("open(args[0] + '/.env')", twin))
    refused(attempt("open(args[0] + '/.env')", workspace), nsbox.Policy.workspace(workspace, deny=[workspace / ".env"]))


def test_errors(way: str, policy: nsbox.Policy) -> None:
    """A program that isn't there is a FileNotFoundError with its name."""
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run(["/nowhere/program"], policy=policy)
    assert caught.value.filename == "/nowhere/program"


def test_status_and_environment(way: str, policy: nsbox.Policy) -> None:
    """The pid, the return code and the environment are the command's own."""
    script = 'echo "$$ $ONE"; kill -TERM $$'
    with nsbox.Popen(["/bin/sh", "-c", script], policy=policy, stdout=nsbox.PIPE, text=True, env={"ONE": "1"}) as child:
        assert child.communicate()[0] == f"{child.pid} 1\n"
    assert child.returncode == -signal.SIGTERM


def test_words_that_look_like_options(way: str, policy: nsbox.Policy) -> None:
    """Arguments go to the command as they are."""
    words = ["-p", "(version 1)(allow default)", "-D", "READ_0=/", "--", "", "two\nlines"]
    code = "import sys; print(sys.argv[1:])"
    assert allowed(python(code, *words), policy) == f"{words}\n"
