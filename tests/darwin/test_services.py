"""Services of macOS that would act for a command outside of the sandbox: none of them can be asked.

Whether a service can be asked is decided where launchd is asked for it by name, which these tests do first. The
programs that use them come on top, since they are what a command would try.
"""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_darwin import PATIENCE, allowed, control, fails, lookup, refused

import nsbox

pytestmark = pytest.mark.darwin

LEADING_OUT = (
    "com.apple.SecurityServer",  # the keychain
    "com.apple.coreservices.appleevents",  # what one application asks of another
    "com.apple.coreservices.launchservicesd",  # starts applications
    "com.apple.lsd.mapdb",
    "com.apple.pasteboard.1",
    "com.apple.tccd.system",
    "com.apple.windowserver.active",
)


def test_services_that_there_are(policy: nsbox.Policy) -> None:
    """What answers for names of users can be asked: so the others aren't lacking for the way they are asked."""
    allowed(lookup("com.apple.system.opendirectoryd.libinfo"), policy)


@pytest.mark.parametrize("network", ["none", "host"])
@pytest.mark.parametrize("name", LEADING_OUT)
def test_services(workspace: Path, name: str, network: str) -> None:
    """A service that leads out of the sandbox can't be found, with the host's network neither."""
    control(lookup(name))
    refused(lookup(name), nsbox.Policy.workspace(workspace, network=network))


def test_osascript(policy: nsbox.Policy) -> None:
    """No Apple event reaches another application."""
    # The control has no event: sending one needs the consent of the person at the Mac. test_services has the other.
    assert control(["/usr/bin/osascript", "-e", "return 6 * 7"]) == "42\n"
    fails(["/usr/bin/osascript", "-e", 'tell application "Finder" to get name of startup disk'], policy)


def test_open(policy: nsbox.Policy, workspace: Path, outside: Path) -> None:
    """`open` starts nothing outside."""
    control(lookup("com.apple.coreservices.launchservicesd"))
    script = workspace / "script.command"
    script.write_text(f"#!/bin/sh\ntouch '{outside}/made'\n")
    script.chmod(0o755)
    fails(["/usr/bin/open", "-g", str(script)], policy)
    fails(["/usr/bin/open", "-g", "-a", "Calculator"], policy)


@pytest.fixture
def label() -> Iterator[str]:
    """The name for a job of launchd's, which is removed afterwards."""
    name = f"nsbox.test.{uuid.uuid4()}"
    yield name
    subprocess.run(["/bin/launchctl", "remove", name], check=False, capture_output=True, timeout=PATIENCE)


def _is_job(name: str) -> bool:
    done = subprocess.run(["/bin/launchctl", "list", name], check=False, capture_output=True, timeout=PATIENCE)
    return done.returncode == 0


def test_launchctl(policy: nsbox.Policy, label: str) -> None:
    """No job can be given to launchd, which would run it outside."""
    submit = ["/bin/launchctl", "submit", "-l", label, "--", "/bin/sleep", "100"]
    control(submit)
    assert _is_job(label)
    control(["/bin/launchctl", "remove", label])
    second = f"{label}.inside"
    submit[3] = second
    nsbox.run(submit, policy=policy, capture_output=True, timeout=PATIENCE)
    try:
        assert not _is_job(second)
    finally:
        subprocess.run(["/bin/launchctl", "remove", second], check=False, capture_output=True, timeout=PATIENCE)


def test_keychain(policy: nsbox.Policy) -> None:
    """The keychain's contents aren't told."""
    dump = ["/usr/bin/security", "dump-keychain"]
    assert "keychain:" in control(dump)
    done = nsbox.run(dump, policy=policy, capture_output=True, text=True, timeout=PATIENCE)
    assert "keychain:" not in done.stdout


def test_pasteboard(policy: nsbox.Policy) -> None:
    """What the user has copied can't be read or replaced."""
    before = subprocess.run(["/usr/bin/pbpaste"], check=True, capture_output=True, timeout=PATIENCE).stdout
    mark = str(uuid.uuid4())
    copy = ["/usr/bin/pbcopy"]
    try:
        control(copy, stdin=None, input=mark)
        assert control(["/usr/bin/pbpaste"]) == mark
        done = nsbox.run(["/usr/bin/pbpaste"], policy=policy, capture_output=True, text=True, timeout=PATIENCE)
        assert mark not in done.stdout
        nsbox.run(copy, policy=policy, input=b"replaced", capture_output=True, timeout=PATIENCE)
        assert control(["/usr/bin/pbpaste"]) == mark
    finally:
        subprocess.run(copy, check=True, input=before, timeout=PATIENCE)


def test_preferences(policy: nsbox.Policy) -> None:
    """Settings of applications can't be changed."""
    domain = f"nsbox.test.{uuid.uuid4()}"
    write, read, delete = (["/usr/bin/defaults", what, domain] for what in ("write", "read", "delete"))
    control([*write, "key", "value"])
    control(delete)
    nsbox.run([*write, "key", "value"], policy=policy, capture_output=True, timeout=PATIENCE)
    done = subprocess.run(read, check=False, capture_output=True, timeout=PATIENCE)
    assert done.returncode != 0
    assert not os.path.exists(os.path.expanduser(f"~/Library/Preferences/{domain}.plist"))
