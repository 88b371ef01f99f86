"""A spawn that fails: the step and the errno are reported, nothing has been executed, and nothing is left.

That no descriptor is left, and the caller's signals are as before, the driver looks after each spawn by itself.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from nsbox_seatbelt_core.running import Core

TOUCH = """
    mark = sys.argv[1]
    profile = compile_profile("(x)")
    def refused(**options):
        found = spawn(["/bin/touch", mark], **({"profile": profile} | options)).refused()
        assert no_child_left()
        assert not os.path.exists(mark)
        return found
"""


def test_a_profile_that_is_refused(core: Core, tmp_path: Path) -> None:
    """What can't be confined isn't executed. The control: the same command, where it can."""
    script = TOUCH + "    say(refused())"
    assert core.run(script, tmp_path / "mark", NSBOX_STUB_FAIL="apply") == [1, "SANDBOX"]
    script = TOUCH + "    say([spawn(['/bin/touch', mark], profile=profile).status(), os.path.exists(mark)])"
    assert core.run(script, tmp_path / "mark") == [0, True]


def test_a_caller_that_is_confined(core: Core, tmp_path: Path) -> None:
    """In a sandbox there can't be another: that is a refusal like any other."""
    assert core.run(TOUCH + "    say(refused())", tmp_path / "mark", NSBOX_STUB_CONFINED="1") == [1, "SANDBOX"]


@pytest.mark.parametrize("reaping", ["SIG_DFL", "SIG_IGN"])
def test_a_command_that_is_killed_before_its_exec(core: Core, tmp_path: Path, reaping: str) -> None:
    """It is an error, not a command that ended; also where the kernel reaps it."""
    script = TOUCH + f"    signal.signal(signal.SIGCHLD, signal.{reaping})\n    say(refused())"
    assert core.run(script, tmp_path / "mark", NSBOX_STUB_FAIL="death") == [3, "KILLED"]


def test_a_caller_that_ignores_its_children(core: Core, tmp_path: Path) -> None:
    """With SIGCHLD ignored, commands start and fail to as ever, with a lifeline too."""
    script = (
        TOUCH
        + """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    failed = [refused(cwd="/no/such"), refused(programs=["/no/such"]), refused(flags="CLOSE_FDS LIFELINE", helper="/no/such")]
    read, write = os.pipe()
    found = spawn(["/bin/echo", "executed"], profile=profile, stdio=(-1, write, -1), flags="CLOSE_FDS LIFELINE")
    os.close(write)
    said = os.read(read, 100).decode() + os.read(read, 100).decode()
    ended = lib.nsbox_has_ended(found.pid, 1)
    say([failed, found.error, said, ended])
    """
    )
    failed, error, said, ended = core.run(script, tmp_path / "mark")
    assert failed == [[2, "CHDIR"], [2, "EXEC"], [2, "HELPER"]]
    assert (error, said, ended) == (0, "executed\n", -10)  # ECHILD: nobody to be reaped


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("stdio=(777, -1, -1)", [9, "STDIO"]),
        ("stdio=(-1, 777, -1)", [9, "STDIO"]),
        ("stdio=(-1, -1, 777)", [9, "STDIO"]),
        ("pass_fds=[1, 777]", [9, "FDS"]),
        ("pass_fds=[-1]", [9, "FDS"]),
        ("pass_fds=[first_free()]", [9, "FDS"]),
        ("stdio=(first_free(), -1, -1)", [9, "STDIO"]),
        ("flags='CLOSE_FDS LIFELINE', helper=None", [22, "HELPER"]),
        ("flags='CLOSE_FDS BY_HELPER', helper=None, profile=None, profile_fd=0", [22, "HELPER"]),
        ("flags='CLOSE_FDS BY_HELPER', profile_fd=0", [22, "SANDBOX"]),
        ("flags='CLOSE_FDS BY_HELPER PREEXEC', profile=None, profile_fd=0", [22, "SANDBOX"]),
        ("flags='CLOSE_FDS BY_HELPER', profile=None, profile_fd=777", [9, "HELPER"]),
        ("profile=None", [22, "SANDBOX"]),
        ("arena_len=1000", [22, "PLAN"]),
        ("cwd='/no/such'", [2, "CHDIR"]),
        ("cwd='/etc/passwd'", [20, "CHDIR"]),
        ("programs=['/no/such']", [2, "EXEC"]),
    ],
)
def test_what_can_not_be(core: Core, tmp_path: Path, options: str, expected: list[object]) -> None:
    """Descriptors that aren't open, though the next pipe would have their number; and requests that make no sense."""
    script = f"""
    def first_free():
        fd = os.dup(0)
        os.close(fd)
        return fd
    say(refused({options}))
    """
    assert core.run(TOUCH + script, tmp_path / "mark") == expected


def test_no_descriptor_left(core: Core, tmp_path: Path) -> None:
    """A caller at its limit of descriptors gets an error that says so, at whichever step they run out."""
    script = """
    import resource
    limit = max(open_fds()) + 1
    found = []
    for room in range(6):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit + room, 1024))
        outcome = start(["/bin/true"], profile=profile, stdio=(DEVNULL, -1, -1), flags="CLOSE_FDS LIFELINE")
        resource.setrlimit(resource.RLIMIT_NOFILE, (200, 1024))
        found.append([outcome.error, outcome.step if outcome.error else outcome.status()])
        assert no_child_left() and max(open_fds()) == limit - 1, open_fds()
    say(found)
    """
    found = core.run(TOUCH + script, tmp_path / "mark")
    assert found[0] == [24, "STDIO"]
    assert found[1] == found[2] == [24, "CLONE"]
    assert [24, "HELPER"] in found
    assert found[-1] == [0, 0]


@pytest.mark.as_user("root has no limit of processes")
def test_no_process_left(core: Core, tmp_path: Path) -> None:
    """A caller at its limit of processes gets an error that says so."""
    script = """
    import resource
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    say(refused())
    """
    assert core.run(TOUCH + script, tmp_path / "mark") == [11, "CLONE"]
