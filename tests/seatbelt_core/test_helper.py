"""The helper's "apply": where a profile can't be compiled in the caller, a program of ours confines itself and becomes it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from nsbox_seatbelt_core.running import Core


def test_it_becomes_the_command(core: Core) -> None:
    """The command is confined by one call, in its own process; program, arguments and environment are the file's."""
    script = """
        read, write = os.pipe()
        params = ["STUB_LOG", sys.argv[1], "K", "/a b"]
        show = ["odd name", "-c", "cat /proc/$$/cmdline /proc/$$/environ; grep NoNew /proc/$$/status", "", "x y"]
        programs = ["/no/such", "/bin/sh"]
        found = by_helper(show, params, programs=programs, envp=["A=1", "B="], stdio=(-1, write, -1))
        os.close(write)
        with open(read) as file:
            text = file.read()
        say([found.pid, found.status(), text])
    """
    pid, status, text = core.run(script, core.log, NSBOX_STUB_LOG="")
    assert status == 0
    argv = "odd name\0-c\0cat /proc/$$/cmdline /proc/$$/environ; grep NoNew /proc/$$/status\0\0x y\0"
    assert text == argv + "A=1\0B=\0NoNewPrivs:\t1\n"
    (call,) = core.calls()
    assert (call.name, call.pid) == ("init_with_parameters", pid)
    assert call.args == ("(profile)", "STUB_LOG", str(core.log), "K", "/a b")


def test_descriptors(core: Core) -> None:
    """The command has 0 to 2 and pass_fds; neither ours, nor what the system's libraries open in the helper."""
    script = """
        free = [os.dup(0) for _ in range(6)]
        for fd in free: os.close(fd)
        passed = []
        for fd in (free[1], free[3], 60):  # beside the numbers that are taken next
            os.dup2(os.memfd_create("passed"), fd)
            passed.append(fd)
        os.dup2(1, 70)
        shown = fds_in(output(SHOW_FDS, by_helper, params=["STUB_LEAK", "1"], pass_fds=passed))
        streams = fds_in(output(SHOW_FDS, by_helper, flags=""))
        say([sorted(shown), passed, all(os.fstat(fd).st_ino == shown[fd] for fd in passed), sorted(streams)])
    """
    shown, passed, same, inherited = core.run(script)
    assert shown == [0, 1, 2, *passed]
    assert same
    # The control, close_fds=False: what is inheritable is there, and nothing of ours or the stub's.
    assert set(inherited) == {0, 1, 2, *passed, 70}


def test_all_else_is_as_without_it(core: Core, tmp_path: Path) -> None:
    """Directory, mask, session, limits and signals are the command's, through the helper."""
    script = """
        import resource
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGHUP])
        wishes = {"cwd": sys.argv[1], "umask": 0o77, "flags": "CLOSE_FDS SETSID RESTORE_SIGNALS LIFELINE"}
        wishes["rlimits"] = [(resource.RLIMIT_CPU, 7, 8)]
        def show(start, **options):
            found = facts(start, **wishes, **options)
            text = output(["/bin/sh", "-c", "pwd -P; ulimit -t; ulimit -Ht"], start, **wishes, **options)
            stat = output(["/bin/cat", "/proc/self/stat"], start, **wishes, **options).rpartition(")")[2].split()
            return [[found[name] for name in ("SigBlk", "SigIgn", "Umask")], text, stat[2] == stat[3]]
        say([show(by_helper), show(spawn, profile=compile_profile("(x)"))])
    """
    by_helper, plain = core.run(script, tmp_path)
    assert by_helper == plain
    assert by_helper == [["0000000000000001", "0000000000000800", "0077"], f"{tmp_path.resolve()}\n7\n8\n", True]


def test_the_offset_does_not_matter(core: Core) -> None:
    """The file is read from its start, wherever its offset is, which stays."""
    script = """
        found = []
        for at in (0, 5, 10000):
            fd = memory_file(orders(["(x)"], ["/bin/true"], ["true"]))
            os.lseek(fd, at, 0)
            outcome = spawn(["/wrong"], profile_fd=fd, flags="CLOSE_FDS BY_HELPER")
            found.append([outcome.status(), os.lseek(fd, 0, 1)])
        say(found)
    """
    assert core.run(script) == [[0, 0], [0, 5], [0, 10000]]


def test_a_large_file(core: Core) -> None:
    """An environment and a profile of hundreds of kilobytes arrive whole."""
    script = """
        envp = [f"V{i}=" + "x" * 1000 for i in range(500)]
        profile = "; " + "y" * 300_000 + "\\n(x)"
        fd = memory_file(orders([profile], ["/bin/cat"], ["cat", "/proc/self/environ"], envp))
        text = output(["/wrong"], profile_fd=fd, flags="CLOSE_FDS BY_HELPER")
        say(text == "".join(line + "\\0" for line in envp))
    """
    assert core.run(script) is True


def test_the_loader_does_not_obey_the_commands_environment(core: Core, tmp_path: Path) -> None:
    """A variable that the loader obeys is for the command's loader, in the sandbox: the helper's never sees it."""
    script = """
        log = sys.argv[1]
        envp = ["LD_DEBUG=files", f"LD_DEBUG_OUTPUT={log}", f"LD_PRELOAD={DIRECTORY}/libnsbox_stub_sandbox.so"]
        found = by_helper(["/bin/true"], envp=envp)
        status = found.status()
        with open(f"{log}.{found.pid}") as file:
            say([status, file.read()])
    """
    status, text = core.run(script, tmp_path / "loader")
    assert status == 0
    assert "/bin/true" in text  # the command's loader obeys: the control
    assert "libnsbox_stub_sandbox.so" in text
    assert "_helper" not in text
    assert len(list(tmp_path.glob("loader.*"))) == 1


def test_the_callers_environment(core: Core, tmp_path: Path) -> None:
    """Nor does it see the caller's."""
    script = """
        os.environ["LD_DEBUG"], os.environ["LD_DEBUG_OUTPUT"] = "files", sys.argv[1]
        assert by_helper(["/bin/true"], flags="CLOSE_FDS LIFELINE").status() == 0
        control = os.posix_spawn("/bin/true", ["true"], os.environ)
        os.waitpid(control, 0)
        say(control)
    """
    control = core.run(script, tmp_path / "loader")
    assert [path.name for path in tmp_path.glob("loader.*")] == [f"loader.{control}"]


@pytest.mark.parametrize(
    ("how", "expected"),
    [("init_with_parameters", [22, "SANDBOX"]), ("death", [3, "KILLED"])],
)
def test_a_profile_that_is_refused(core: Core, tmp_path: Path, how: str, expected: list[object]) -> None:
    """What can't be confined isn't executed; that it died of the profile is reported too (Seatbelt does, of 17,770 rules)."""
    script = """
        found = by_helper(["/bin/touch", sys.argv[1]], ["STUB_FAIL", sys.argv[2]])
        say([found.refused(), no_child_left(), os.path.exists(sys.argv[1])])
    """
    assert core.run(script, tmp_path / "mark", how) == [expected, True, False]


@pytest.mark.parametrize(
    ("programs", "expected"),
    [(["/no/such"], [2, "EXEC"]), (["/no/such", "/etc", "/bin/true/below"], [13, "EXEC"])],
)
def test_programs(core: Core, programs: list[str], expected: list[object]) -> None:
    """Errors of the exec are reported as without the helper."""
    script = f"""
        say([by_helper(["x"], programs={programs!r}).refused(), no_child_left()])
    """
    assert core.run(script) == [expected, True]


@pytest.mark.parametrize(("helper", "expected"), [("/no/such", [2, "HELPER"]), ("/bin/true", [3, "KILLED"])])
def test_no_helper(core: Core, tmp_path: Path, helper: str, expected: list[object]) -> None:
    """A helper that is missing, or isn't ours, starts no command."""
    script = """
        found = by_helper(["/bin/touch", sys.argv[1]], helper=sys.argv[2])
        say([found.refused(), no_child_left(), os.path.exists(sys.argv[1])])
    """
    assert core.run(script, tmp_path / "mark", helper) == [expected, True, False]


MALFORMED = {
    "empty": b"",
    "no magic": b"nsbox\0",
    "other magic": b"nsbox 2\x00" + b"1\0p\x001\0/bin/true\x001\0true\x000\0",
    "magic without end": b"nsbox 1",
    "only magic": b"nsbox 1\0",
    "no profile": b"nsbox 1\x000\x001\0/bin/true\x001\0true\x000\0",
    "a key without a value": b"nsbox 1\x002\0p\0k\x001\0/bin/true\x001\0true\x000\0",
    "no program": b"nsbox 1\x001\0p\x000\x001\0true\x000\0",
    "no argument": b"nsbox 1\x001\0p\x001\0/bin/true\x000\x000\0",
    "too few": b"nsbox 1\x001\0p\x001\0/bin/true\x001\0true\x001\0",
    "more after it": b"nsbox 1\x001\0p\x001\0/bin/true\x001\0true\x000\0\0",
    "no end": b"nsbox 1\x001\0p\x001\0/bin/true\x001\0true\x001\0A=1",
    "a sign": b"nsbox 1\x00+1\0p\x001\0/bin/true\x001\0true\x000\0",
    "negative": b"nsbox 1\x00-1\0p\x001\0/bin/true\x001\0true\x000\0",
    "a space": b"nsbox 1\x00 1\0p\x001\0/bin/true\x001\0true\x000\0",
    "a leading zero": b"nsbox 1\x0001\0p\x001\0/bin/true\x001\0true\x000\0",
    "hexadecimal": b"nsbox 1\x000x1\0p\x001\0/bin/true\x001\0true\x000\0",
    "no number": b"nsbox 1\x00\0p\x001\0/bin/true\x001\0true\x000\0",
    "more than there is": b"nsbox 1\x00100\0p\x001\0/bin/true\x001\0true\x000\0",
    "2^31": b"nsbox 1\x002147483648\0p\0",
    "2^61": b"nsbox 1\x002305843009213693952\0p\0",
    "2^64": b"nsbox 1\x0018446744073709551616\0p\0",
    "2^64 + 1": b"nsbox 1\x0018446744073709551617\0p\x001\0/bin/true\x001\0true\x000\0",
    "many digits": b"nsbox 1\x00" + b"9" * 100_000 + b"\0p\0",
    "noise": bytes(range(256)) * 300,
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files(core: Core, tmp_path: Path, name: str) -> None:
    """A file that isn't one of ours is refused before anything is confined or executed."""
    (tmp_path / "orders").write_bytes(MALFORMED[name])
    script = """
        fd = os.open(sys.argv[1], os.O_RDONLY)
        say([spawn(["/wrong"], profile_fd=fd, flags="CLOSE_FDS BY_HELPER").refused(), no_child_left()])
    """
    assert core.run(script, tmp_path / "orders") == [[22, "PLAN"], True]


def test_truncated_files(core: Core, tmp_path: Path) -> None:
    """However much of a file is missing at its end, nothing is executed; whole it is."""
    script = """
        mark, log = sys.argv[1:]
        text = orders(["(x)", "STUB_LOG", log], ["/bin/touch"], ["touch", mark], ["A=1", "B=2"])
        found = set()
        for size in range(len(text)):
            fd = memory_file(text[:size])
            found.add(tuple(spawn(["/wrong"], profile_fd=fd, flags="CLOSE_FDS BY_HELPER").refused()))
            os.close(fd)
        existed = [os.path.exists(mark), os.path.exists(log)]
        spawn(["/wrong"], profile_fd=memory_file(text), flags="CLOSE_FDS BY_HELPER").status()
        say([sorted(found), *existed, os.path.exists(mark), os.path.exists(log)])
    """
    assert core.run(script, tmp_path / "mark", core.log, NSBOX_STUB_LOG="") == [
        [[22, "PLAN"]],
        False,
        False,
        True,
        True,
    ]


def test_what_is_no_file(core: Core) -> None:
    """A pipe, a directory, a descriptor that can't be read: refused with what the system says."""
    script = """
        read, write = os.pipe()
        fds = [read, os.open("/", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY), os.open("/dev/zero", os.O_RDONLY)]
        say([spawn(["/wrong"], profile_fd=fd, flags="CLOSE_FDS BY_HELPER").refused() for fd in fds])
    """
    assert core.run(script) == [[29, "PLAN"], [21, "PLAN"], [9, "PLAN"], [7, "PLAN"]]


@pytest.mark.parametrize(
    "arguments", [[], ["apply"], ["apply", "5", "x"], ["apply", "1", "0"], ["apply", "700", "701"], ["x"]]
)
def test_nonsense_for_the_helper(core: Core, arguments: list[str]) -> None:
    """Arguments that nobody of ours would give it make it end, at once and without a word."""
    command = [core.directory / "_helper", *arguments]
    done = subprocess.run(command, capture_output=True, stdin=subprocess.DEVNULL, env={}, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (127, b"", b"")
