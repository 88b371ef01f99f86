"""A spawn: who is confined, and what a command gets, byte by byte and number by number."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsbox_seatbelt_core.running import Core


def test_only_the_command_is_confined(core: Core) -> None:
    """The profile is applied once, by the command itself, before its program; the caller stays as it was."""
    script = """
        profile = compile_profile("(one)", "K", "V")
        read, write = os.pipe()
        found = spawn(["/bin/cat", "/proc/self/status"], profile=profile, stdio=(-1, write, -1))
        os.close(write)
        with open(read) as file:
            inside = file.read()
        assert found.status() == 0
        lib.nsbox_seatbelt_free(profile)
        with open("/proc/self/status") as file:
            here = file.read()
        say([found.pid, "NoNewPrivs:\\t1" in inside, "NoNewPrivs:\\t0" in here, f"PPid:\\t{os.getpid()}" in inside])
    """
    pid, *rest = core.run(script)
    assert rest == [True, True, True]
    assert [(call.name, call.args) for call in core.calls() if call.pid == pid] == [("apply", ("(one)",))]
    assert core.names().count("apply") == 1
    assert core.calls()[-1].live == 0


def test_no_profile(core: Core, tmp_path: Path) -> None:
    """Without a profile nothing starts, unless it is said that nobody confines the command."""
    script = """
        refused = spawn(["/bin/touch", sys.argv[1]]).refused()
        assert not os.path.exists(sys.argv[1])
        status = spawn(["/bin/touch", sys.argv[1]], flags="CLOSE_FDS UNCONFINED").status()
        say([*refused, status, os.path.exists(sys.argv[1])])
    """
    assert core.run(script, tmp_path / "mark") == [22, "SANDBOX", 0, True]
    assert core.names() == []


def test_descriptors(core: Core) -> None:
    """The command has 0 to 2 and pass_fds, and no other, whatever is inheritable; as what they are in the caller."""
    script = """
        for number in (10, 11, 12, 40, 1000):
            os.dup2(os.memfd_create(str(number)), number)
        os.set_inheritable(11, False)
        os.set_inheritable(1000, False)
        kept = fds_in(output(SHOW_FDS, profile=compile_profile("(x)"), pass_fds=[11, 40, 1000]))
        same = all(os.fstat(number).st_ino == kept[number] for number in (0, 2, 11, 40, 1000))
        everything = fds_in(output(SHOW_FDS, profile=compile_profile("(x)"), pass_fds=[11], flags=""))
        say([sorted(kept), same, sorted(everything)])
    """
    kept, same, everything = core.run(script)
    assert kept == [0, 1, 2, 11, 40, 1000]
    assert same
    # The control, close_fds=False: what is inheritable is there, and still nothing of ours.
    assert everything == [0, 1, 2, 10, 11, 12, 40]


def test_standard_streams(core: Core) -> None:
    """Each of 0, 1, 2 becomes what was asked for, in all combinations: swapped, doubled, /dev/null, inherited."""
    script = """
        import itertools
        os.dup2(os.memfd_create("report"), 9)
        real = [os.dup(1), os.dup(2)]
        high = os.memfd_create("high")
        for number in (0, 1, 2):
            os.dup2(os.memfd_create(str(number)), number, inheritable=False)
        null = os.stat("/dev/null").st_ino
        profile = compile_profile("(x)")
        def streams(wish):
            os.ftruncate(9, 0)
            os.lseek(9, 0, 0)
            assert start([*SHOW_FDS, "9"], profile=profile, stdio=wish, pass_fds=[9]).status() == 0
            return fds_in(os.pread(9, 1000, 0))
        wrong = []
        for wish in itertools.product((DEVNULL, 0, 1, 2, high), repeat=3):
            expected = {n: null if fd == DEVNULL else os.fstat(fd).st_ino for n, fd in enumerate(wish)}
            found = streams(wish)
            if found != expected | {9: os.fstat(9).st_ino}:
                wrong.append([wish, found, expected])
        # Inherited ones keep their flag: so they end with the exec, or don't.
        inherited = [list(streams((-1, -1, -1)))]
        for number in (0, 1, 2):
            os.set_inheritable(number, True)
        inherited.append(list(streams((-1, -1, -1))))
        os.dup2(real[0], 1)
        os.dup2(real[1], 2)
        say([wrong, inherited])
    """
    wrong, (flagged, unflagged) = core.run(script)
    assert wrong == []
    assert (flagged, unflagged) == ([9], [0, 1, 2, 9])


def test_standard_streams_among_pass_fds(core: Core) -> None:
    """A standard stream that is to be passed survives the exec too; one that isn't keeps its flag."""
    script = """
        os.dup2(os.memfd_create("zero"), 0, inheritable=False)
        show = ["/bin/sh", "-c", "[ -e /proc/$$/fd/0 ] && echo there || echo not there"]
        profile = compile_profile("(x)")
        say([output(show, profile=profile, pass_fds=passed) for passed in ([0], [])])
    """
    assert core.run(script) == ["there\n", "not there\n"]


def test_closed_standard_streams(core: Core) -> None:
    """In a caller without standard streams no descriptor of ours becomes one of the command's."""
    script = """
        os.dup2(os.memfd_create("report"), 9)
        real = [os.dup(1), os.dup(2)]
        for number in (0, 1, 2):
            os.close(number)
        show = [*SHOW_FDS, "9"]
        status = start(show, profile=compile_profile("(x)"), pass_fds=[9], flags="CLOSE_FDS LIFELINE").status()
        nothing = [line.split()[0] for line in os.pread(9, 1000, 0).decode().splitlines()]
        # Ours aren't overwritten either: through them, the outcome is reported.
        given = {"stdio": (DEVNULL, 9, 9), "flags": "CLOSE_FDS LIFELINE"}
        others = [start(show[:-1], profile=compile_profile("(x)"), **given).status()]
        others.append(start(["/no/such"], profile=compile_profile("(x)"), **given).refused())
        others.append(by_helper(["/no/such"], **given).refused())
        shown = [line.split()[0] for line in os.pread(9, 1000, 0).decode().splitlines()]
        os.dup2(real[0], 1)
        os.dup2(real[1], 2)
        say([status, nothing, others, shown])
    """
    assert core.run(script) == [0, ["9"], [0, [2, "EXEC"], [2, "EXEC"]], ["9", "0", "1", "2"]]


@pytest.mark.parametrize("named", [True, False])
def test_directory(core: Core, tmp_path: Path, named: bool) -> None:
    """It starts in the directory that is named; none means "/"."""
    script = """
        say(output(["/bin/sh", "-c", "pwd -P"], profile=compile_profile("(x)"), cwd=sys.argv[1] or None))
    """
    assert core.run(script, tmp_path if named else "") == (f"{tmp_path.resolve()}\n" if named else "/\n")


def test_a_directory_that_is_missing(core: Core, tmp_path: Path) -> None:
    """It is an error with its step, unless it may be missing: then "/" is it."""
    script = """
        profile = compile_profile("(x)")
        refused = spawn(["/bin/true"], profile=profile, cwd="/no/such").refused()
        say([*refused, output(["/bin/pwd"], profile=profile, cwd="/no/such", flags="CLOSE_FDS CWD_OPTIONAL")])
    """
    assert core.run(script) == [2, "CHDIR", "/\n"]
    assert core.names().count("apply") == 1


def test_arguments_and_environment(core: Core) -> None:
    """Both arrive as they were given, empty ones and bytes that aren't UTF-8 included, and nothing besides."""
    script = r"""
        profile = compile_profile("(x)")
        argv = output(["/bin/cat", "/proc/self/cmdline"], profile=profile, programs=["/bin/cat"])
        show = [b"odd name", b"-c", b'cat /proc/$$/cmdline /proc/$$/environ', b"", b"\xff b"]
        both = output(show, profile=profile, programs=["/bin/sh"], envp=[b"A=1", b"B=", b"C=\xfe"])
        say([argv, os.fsencode(both).decode("latin-1")])
    """
    argv, both = core.run(script)
    assert argv == "/bin/cat\0/proc/self/cmdline\0"
    assert both == "odd name\0-c\0cat /proc/$$/cmdline /proc/$$/environ\0\0\xff b\0A=1\0B=\0C=\xfe\0"


def test_sessions_and_groups(core: Core) -> None:
    """A session or a process group is made, joined, or left as it is."""
    script = """
        profile = compile_profile("(x)")
        def show(**options):
            text = output(["/bin/cat", "/proc/self/stat"], profile=profile, **options)
            pid, rest = int(text.split()[0]), text.rpartition(")")[2].split()
            group, session = int(rest[2]), int(rest[3])
            names = {pid: "own", os.getpgid(0): "caller", os.getsid(0): "caller"}
            return [names.get(group, group), names.get(session, session)]
        keeper = os.posix_spawn("/bin/cat", ["cat"], {}, setpgroup=0, file_actions=[(os.POSIX_SPAWN_DUP2, os.pipe()[0], 0)])
        joined = show(pgid=keeper) == [keeper, "caller"]
        kill(keeper)
        wrong = spawn(["/bin/true"], profile=profile, pgid=1).refused()
        say([show(), show(flags="CLOSE_FDS SETSID"), show(pgid=0), joined, wrong])
    """
    assert core.run(script) == [["caller", "caller"], ["own", "own"], ["own", "caller"], True, [1, "PGID"]]


def test_umask(core: Core) -> None:
    """The mask is the caller's, or the one that is named."""
    script = """
        os.umask(0o27)
        profile = compile_profile("(x)")
        say([facts(profile=profile, umask=mask)["Umask"] for mask in (-1, 0, 0o77)])
    """
    assert core.run(script) == ["0027", "0000", "0077"]


def test_limits(core: Core) -> None:
    """They are set, never above the caller's own hard one; the descriptors above a lower one are closed all the same."""
    script = """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, 400))
        os.dup2(1, 250)
        os.set_inheritable(250, True)
        wished = [(resource.RLIMIT_NOFILE, 20, 30), (resource.RLIMIT_CORE, 0, 0), (resource.RLIMIT_CPU, 7, 2**64 - 1)]
        show = ["/bin/sh", "-c", "ulimit -n; ulimit -Hn; ulimit -c; ulimit -t; ulimit -Ht; ls /proc/$$/fd"]
        profile = compile_profile("(x)")
        first = output(show, profile=profile, rlimits=wished)
        second = output(show[:2] + ["ulimit -n; ulimit -Hn"], profile=profile, rlimits=[(resource.RLIMIT_NOFILE, 5000, 9000)])
        say([first.split(), second.split(), spawn(["/bin/true"], profile=profile, rlimits=[(99, 1, 1)]).refused()])
    """
    first, second, wrong = core.run(script)
    assert first == ["20", "30", "0", "7", "unlimited", "0", "1", "2"]
    assert second == ["400", "400"]
    assert wrong == [22, "RLIMIT"]


def test_signals(core: Core) -> None:
    """The command has the caller's mask and what it ignores, and none of its handlers; SIGPIPE and SIGXFSZ as asked."""
    script = """
        signal.signal(signal.SIGUSR1, lambda *_: None)
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGHUP, signal.SIGCHLD])
        profile = compile_profile("(x)")
        def show(flags):
            found = facts(profile=profile, flags=flags)
            bits = lambda name: [n for n in range(1, 65) if int(found[name], 16) >> n - 1 & 1]
            return [bits(name) for name in ("SigBlk", "SigIgn", "SigCgt", "SigPnd", "ShdPnd")]
        say([show("CLOSE_FDS"), show("CLOSE_FDS RESTORE_SIGNALS"), show("CLOSE_FDS LIFELINE")])
    """
    kept, restored, watched = core.run(script)
    assert kept == [[1, 17], [12, 13, 25], [], [], []]  # SIGHUP, SIGCHLD; SIGUSR2, and Python's SIGPIPE, SIGXFSZ
    assert restored == [[1, 17], [12], [], [], []]
    assert watched == kept  # no SIGCHLD of the lifeline's making


@pytest.mark.parametrize(
    ("programs", "expected"),
    [
        ([], [2, "EXEC"]),
        (["/no/such"], [2, "EXEC"]),
        (["/bin/true/below", "/no/such"], [2, "EXEC"]),
        (["/no/such", "/bin/true/below"], [20, "EXEC"]),
        (["/no/such", "/etc", "/bin/true/below"], [13, "EXEC"]),
        (["/no/such", "{script}", "/etc"], [8, "EXEC"]),
        (["/no/such", "/etc", "/bin/true"], 0),
    ],
)
def test_programs(core: Core, tmp_path: Path, programs: list[str], expected: object) -> None:
    """They are tried in their order; the first error that says more than "not here" is the one that is reported."""
    (tmp_path / "script").write_text("exit 3\n")  # of no known format
    (tmp_path / "script").chmod(0o755)
    script = """
        import json
        found = spawn(["name"], profile=compile_profile("(x)"), programs=json.loads(sys.argv[1]))
        say(found.refused() if found.error else found.status())
        assert no_child_left()
    """
    import json

    asked = json.dumps([program.format(script=tmp_path / "script") for program in programs])
    assert core.run(script, asked) == expected


@pytest.mark.as_root("an ordinary user can't change ids")
def test_ids(core: Core) -> None:
    """Groups, gid and uid are changed for good: real, effective and saved ones; the watcher keeps the caller's."""
    script = """
        os.chdir("/")
        found = facts(profile=compile_profile("(x)"), uid=1234, gid=2345, groups=[7, 8], flags="CLOSE_FDS SET_GROUPS LIFELINE")
        none = facts(profile=compile_profile("(x)"), uid=1234, gid=2345, flags="CLOSE_FDS SET_GROUPS")
        say([found["Uid"].split(), found["Gid"].split(), found["Groups"].split(), none["Groups"].split()])
    """
    # Without the log, which that user can't open.
    assert core.run(script, NSBOX_STUB_LOG="") == [["1234"] * 4, ["2345"] * 4, ["7", "8"], []]


@pytest.mark.as_user("root may do it")
def test_ids_of_others(core: Core) -> None:
    """A caller that may not change ids gets an error that names the step; asking for the ids it has is no change."""
    script = """
        profile = compile_profile("(x)")
        wishes = [{"uid": 0}, {"gid": 0}, {"groups": [0], "flags": "CLOSE_FDS SET_GROUPS"}]
        assert spawn(["/bin/true"], profile=profile).status() == 0
        say([spawn(["/bin/true"], profile=profile, **wish).refused() for wish in wishes])
    """
    assert core.run(script) == [[1, "UID"], [1, "GID"], [1, "GROUPS"]]


def test_the_end_is_seen_without_reaping(core: Core) -> None:
    """has_ended() says whether a child has ended, waits for it if it is to, and leaves it to be reaped."""
    script = """
        read, write = os.pipe()
        found = spawn(["/bin/cat"], profile=compile_profile("(x)"), stdio=(read, -1, -1))
        before = lib.nsbox_has_ended(found.pid, 0)
        os.close(write)
        after = [lib.nsbox_has_ended(found.pid, 1), lib.nsbox_has_ended(found.pid, 0)]
        say([before, after, found.status(), lib.nsbox_has_ended(found.pid, 0), lib.nsbox_has_ended(found.pid, 1)])
    """
    assert core.run(script) == [0, [1, 1], 0, -10, -10]  # ECHILD
