"""preexec_fn: Python code in the command, confined already, before its program; as on Linux."""

from __future__ import annotations

from pathlib import Path

from nsbox_seatbelt_core.running import Core

STATUS = """
    def own():
        with open("/proc/self/status") as file:
            return dict(line.rstrip("\\n").split(":\\t", 1) for line in file)
    profile = compile_profile("(x)")
    seen = os.memfd_create("seen")
"""


def test_it_runs_in_the_command(core: Core, tmp_path: Path) -> None:
    """It is called in the process that becomes the program, confined, in its directory, with its mask, streams, signals."""
    script = (
        STATUS
        + """
    signal.signal(signal.SIGUSR1, lambda *_: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGHUP])
    caller = os.getpid()
    def look(r):
        facts = own()
        row = [os.getpid(), os.getppid() == caller, os.getcwd(), facts["NoNewPrivs"], facts["Umask"], facts["SigBlk"][-4:],
               int(facts["SigCgt"], 16) >> 9 & 1, os.readlink("/proc/self/fd/0"), os.getsid(0) == os.getpid()]
        os.write(seen, json.dumps(row).encode())
    import json
    flags = "CLOSE_FDS RESTORE_SIGNALS SETSID LIFELINE"
    found = spawn_with(look, ["/bin/true"], profile=profile, flags=flags, cwd=sys.argv[1], umask=0o77, stdio=(DEVNULL, -1, -1))
    say([found.pid, found.status(), json.loads(os.pread(seen, 4000, 0))])
    """
    )
    pid, status, row = core.run(script, tmp_path)
    assert status == 0
    assert row == [pid, True, str(tmp_path.resolve()), "1", "0077", "0001", 0, "/dev/null", True]
    assert [call.pid for call in core.calls() if call.name == "apply"] == [pid]


def test_what_it_changes_counts(core: Core, tmp_path: Path) -> None:
    """Directory, mask, blocked signals and environment are the program's, as it leaves them."""
    script = (
        STATUS
        + """
    keep = []
    def change(r):
        os.chdir(sys.argv[1])
        os.umask(0o11)
        signal.pthread_sigmask(signal.SIG_SETMASK, [signal.SIGUSR1])
        r.envp = strings(["PATH=/usr/bin:/bin", "CHANGED=1"], keep)
    def start_changed(argv, **options):
        return spawn_with(change, argv, **options)
    shown = facts(start_changed, profile=profile)
    text = output(["/bin/sh", "-c", "pwd -P; echo $CHANGED"], start_changed, profile=profile)
    say([shown["Umask"], shown["SigBlk"][-4:], text])
    """
    )
    assert core.run(script, tmp_path) == ["0011", "0200", f"{tmp_path.resolve()}\n1\n"]


def test_descriptors(core: Core) -> None:
    """It has the caller's, and what it opens is closed, except pass_fds; with close_fds=False it stays."""
    script = (
        STATUS
        + """
    secret = os.memfd_create("secret")
    kept = os.memfd_create("kept")
    def use(r):
        os.write(secret, b"was here")
        os.dup2(secret, 90)
        os.dup2(secret, kept)
    def start_using(argv, **options):
        return spawn_with(use, argv, **options)
    shown = fds_in(output(SHOW_FDS, start_using, profile=profile, pass_fds=[kept]))
    everything = fds_in(output(SHOW_FDS, start_using, profile=profile, flags="LIFELINE"))
    inode = os.fstat(secret).st_ino
    say([sorted(shown), kept, shown[kept] == inode, sorted(everything), os.pread(secret, 8, 0).decode()])
    """
    )
    shown, kept, replaced, everything, text = core.run(script)
    assert shown == [0, 1, 2, kept]
    assert replaced
    assert everything == [0, 1, 2, kept, 90]
    assert text == "was here"


def test_limits(core: Core) -> None:
    """It may lower limits; those that were asked for hold whatever it does."""
    script = (
        STATUS
        + """
    import resource
    def lower(r):
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        resource.setrlimit(resource.RLIMIT_CPU, (500, 500))
    def start_lower(argv, **options):
        return spawn_with(lower, argv, **options)
    wished = [(resource.RLIMIT_NOFILE, 100, 100), (resource.RLIMIT_CPU, 50, 50)]
    say(output(["/bin/sh", "-c", "ulimit -n; ulimit -t"], start_lower, profile=profile, rlimits=wished))
    """
    )
    assert core.run(script) == "40\n50\n"


def test_sessions(core: Core) -> None:
    """A session is made after it, unless it has made one."""
    script = (
        STATUS
        + """
    def session(preexec, flags):
        start = lambda argv, **options: spawn_with(preexec, argv, **options)
        stat = output(["/bin/cat", "/proc/self/stat"], start, profile=profile, flags=flags)
        return stat.split()[0] == stat.rpartition(")")[2].split()[3]
    nothing = lambda r: None
    own = lambda r: os.setsid()
    leader = spawn_with(lambda r: os.setpgid(0, 0), ["/bin/true"], profile=profile, flags="CLOSE_FDS SETSID_LAST")
    say([session(nothing, "CLOSE_FDS"), session(nothing, "CLOSE_FDS SETSID_LAST"), session(own, "CLOSE_FDS SETSID_LAST"),
         leader.refused()])
    """
    )
    assert core.run(script) == [False, True, True, [1, "SESSION"]]  # the leader of a group can't have one


def test_it_fails(core: Core, tmp_path: Path) -> None:
    """What it raises stops the start: nothing is executed, nothing left."""
    script = (
        STATUS
        + """
    def fail(r):
        os.dup2(os.open("/dev/null", os.O_WRONLY), 2)  # its traceback
        raise SystemExit(3)
    found = spawn_with(fail, ["/bin/touch", sys.argv[1]], profile=profile)
    say([found.refused(), no_child_left(), os.path.exists(sys.argv[1])])
    """
    )
    assert core.run(script, tmp_path / "mark") == [[22, "PREEXEC"], True, False]


def test_it_ends_the_command(core: Core) -> None:
    """_exit() and a signal are the command's end: a status, and no error."""
    script = (
        STATUS
        + """
    ends = [lambda r: os._exit(5), lambda r: os.kill(os.getpid(), signal.SIGKILL)]
    say([spawn_with(end, ["/bin/true"], profile=profile).status() for end in ends])
    """
    )
    assert core.run(script) == [5, -9]


def test_errors_after_it(core: Core) -> None:
    """What fails later is reported with its step; after an earlier failure it never runs."""
    script = (
        STATUS
        + """
    import resource
    run = lambda r: os.write(seen, b"1")
    later = [spawn_with(run, ["/no/such"], profile=profile), spawn_with(run, ["/bin/true"], profile=profile, rlimits=[(99, 1, 1)])]
    before = spawn_with(run, ["/bin/true"], profile=profile, cwd="/no/such")
    say([[found.refused() for found in (*later, before)], os.pread(seen, 9, 0).decode(), no_child_left()])
    """
    )
    assert core.run(script) == [[[2, "EXEC"], [22, "RLIMIT"], [2, "CHDIR"]], "11", True]


def test_a_profile_that_is_refused(core: Core) -> None:
    """Where the command can't be confined, it doesn't run."""
    script = (
        STATUS
        + """
    found = spawn_with(lambda r: os.write(seen, b"1"), ["/bin/true"], profile=profile)
    say([found.refused(), os.pread(seen, 9, 0).decode(), no_child_left()])
    """
    )
    assert core.run(script, NSBOX_STUB_FAIL="apply") == [[1, "SANDBOX"], "", True]
