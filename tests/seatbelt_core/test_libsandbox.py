"""libsandbox: which of its functions are found, and how they are called. The stub aborts on misuse, such as a second free."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from nsbox_seatbelt_core.running import Core

ROOT = Path(__file__).resolve().parents[2]


def elsewhere(core: Core, tmp_path: Path, library: Path) -> Core:
    """Return a copy of the build for which libsandbox is another file, or none."""
    directory = tmp_path / "copy"
    directory.mkdir()
    old, new = str(core.directory / "libnsbox_stub_sandbox.so").encode(), str(library).encode()
    assert len(new) <= len(old)  # it has to fit in
    for name in ("_nsbox.abi3.so", "_helper"):
        text = (core.directory / name).read_bytes()
        assert text.count(old + b"\0") >= 1
        (directory / name).write_bytes(text.replace(old + b"\0", new + bytes(len(old) - len(new) + 1)))
        shutil.copymode(core.directory / name, directory / name)
    return Core(directory, core.log)


@pytest.fixture
def short() -> Iterator[Path]:
    """An empty directory with a short name."""
    with tempfile.TemporaryDirectory(prefix="n", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def only_init(core: Core, tmp_path: Path, short: Path) -> Core:
    """A libsandbox, the file i.so, without the functions that compile and apply apart from each other."""
    library = short / "i.so"
    command = ["cc", "-shared", "-fPIC", "-DSTUB_ONLY_INIT", "-o", library, ROOT / "csrc/tests/stub_libsandbox.c"]
    subprocess.run(command, check=True)
    return elsewhere(core, tmp_path, library)


def test_all_functions_are_found(core: Core) -> None:
    """With all of them a profile can be compiled here and applied there, or both be done by the helper."""
    assert core.run("say([lib.nsbox_seatbelt_ways(), lib.NSBOX_WAY_COMPILED | lib.NSBOX_WAY_INIT])") == [3, 3]


def test_some_functions_are_missing(only_init: Core) -> None:
    """Without those that compile the other way is left, and compiling says that it can't be done."""
    script = """
        try:
            compile_profile("(version 1)")
        except ValueError as error:
            message = str(error)
        say([lib.nsbox_seatbelt_ways(), lib.nsbox_seatbelt_confined(), message])
    """
    assert only_init.run(script) == [2, 0, "libsandbox lacks functions for it"]
    assert only_init.names() == ["check"]


def test_some_functions_are_in_libsystem(only_init: Core, short: Path) -> None:
    """Those that libSystem hands on are found there, when there is no libsandbox by its path."""
    (short / "i.so").rename(short / "preloaded.so")
    script = "say([lib.nsbox_seatbelt_ways(), lib.nsbox_seatbelt_confined()])"
    assert only_init.run(script) == [0, -38]  # ENOSYS
    assert only_init.run(script, LD_PRELOAD=str(short / "preloaded.so")) == [2, 0]


def test_no_libsandbox(core: Core, tmp_path: Path) -> None:
    """Without it nothing is confined, and nothing starts that was to be: not by the helper either."""
    missing = elsewhere(core, tmp_path, Path("/no/such.so"))
    script = """
        assert lib.nsbox_seatbelt_ways() == 0
        assert lib.nsbox_seatbelt_confined() == -errno.ENOSYS
        lib.nsbox_seatbelt_free(ffi.NULL)
        say(by_helper(["/bin/touch", sys.argv[1]]).refused() + spawn(["/bin/touch", sys.argv[1]]).refused())
    """
    assert missing.run(script, tmp_path / "mark") == [38, "SANDBOX", 22, "SANDBOX"]
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize(("confined", "expected"), [("1", 1), ("0", 0)])
def test_being_confined(core: Core, confined: str, expected: int) -> None:
    """Whether this process is in a sandbox is what libsandbox says of it."""
    assert core.run("say(lib.nsbox_seatbelt_confined())", NSBOX_STUB_CONFINED=confined) == expected
    assert core.names() == ["check"]


def test_order_and_arguments(core: Core) -> None:
    """Parameters are set one by one, in their order and to the last byte; all but the profile is freed, then that too."""
    script = r"""
        profile = compile_profile("(version 1)\n; \u00e9", "A", "/a b", b"B", b'/"\xff', "C", "")
        lib.nsbox_seatbelt_free(profile)
        lib.nsbox_seatbelt_free(ffi.NULL)
        say(None)
    """
    core.run(script)
    text = "(version 1)\n; \u00e9"
    assert [(call.name, call.args, call.live) for call in core.calls()] == [
        ("create_params", (), 1),
        ("set_param", ("A", "/a b"), 1),
        ("set_param", ("B", '/"\udcff'), 1),
        ("set_param", ("C", ""), 1),
        ("compile_string", (text, "A", "/a b", "B", '/"\udcff', "C", ""), 2),
        ("free_params", (), 1),
        ("free_profile", (), 0),
    ]


@pytest.mark.parametrize(
    ("function", "message", "calls"),
    [
        ("create_params", "no memory for parameters", ["create_params"]),
        ("set_param", "parameter refused: A", ["create_params", "set_param", "free_params"]),
        (
            "compile_string",
            "stub: (nonsense): unbound variable: \u00e9t\u00e9",
            ["create_params", "set_param", "compile_string", "free_error", "free_params"],
        ),
    ],
)
def test_failures(core: Core, function: str, message: str, calls: list[str]) -> None:
    """A profile that is refused: the reason is said, and all that libsandbox has given is freed, once."""
    script = """
        try:
            compile_profile("(nonsense)", "A", "1")
        except ValueError as error:
            say(str(error))
    """
    assert core.run(script, NSBOX_STUB_FAIL=function) == message
    assert core.names() == calls
    assert core.calls()[-1].live == 0


@pytest.mark.parametrize("size", [0, 1, 2, 10])
def test_long_messages_are_cut(core: Core, size: int) -> None:
    """A message never takes more than the bytes that there are for it, its end included."""
    script = """
        try:
            compile_profile("(nonsense)", size=int(sys.argv[1]))
        except ValueError as error:
            say(str(error))
    """
    found = core.run(script, size, NSBOX_STUB_FAIL="compile_string")
    assert found == "stub: (nonsense)"[: max(0, size - 1)]


def test_a_key_without_a_value(core: Core) -> None:
    """Parameters that don't come in pairs are refused, not read beyond their end."""
    script = """
        try:
            compile_profile("(version 1)", "A", "1", "B")
        except ValueError as error:
            say(str(error))
    """
    assert core.run(script) == "parameter refused: B"
    assert core.calls()[-1].live == 0


def test_threads_compile_one_after_another(core: Core) -> None:
    """Threads may compile at any time; libsandbox sees one of them at a time (the stub aborts when it sees two)."""
    script = """
        ready, made = threading.Barrier(4), []
        def work():
            ready.wait()
            for i in range(20):
                made.append(compile_profile("(version 1)", "I", str(i)))
        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        for profile in made: lib.nsbox_seatbelt_free(profile)
        say(len(made))
    """
    assert core.run(script) == 80
    calls = core.calls()
    assert len({call.tid for call in calls if call.name == "compile_string"}) == 4
    assert calls[-1].live == 0


def test_a_fork_while_another_thread_compiles(core: Core) -> None:
    """A child that is forked meanwhile can compile too: it doesn't wait for a thread that it doesn't have."""
    script = """
        import warnings
        warnings.simplefilter("ignore", DeprecationWarning)  # forks and threads
        stop = []
        def work():
            while not stop:
                lib.nsbox_seatbelt_free(compile_profile("(version 1)"))
        lib.nsbox_seatbelt_ways()
        thread = threading.Thread(target=work)
        thread.start()
        statuses = set()
        for _ in range(100):
            pid = os.fork()
            if pid == 0:
                signal.alarm(20)
                os._exit(0 if compile_profile("(version 1)") else 1)
            statuses.add(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        stop.append(1)
        thread.join()
        say(sorted(statuses))
    """
    assert core.run(script) == [0]
