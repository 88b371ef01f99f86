"""`nsbox python`: a program as `python -c` would run it, and a prompt as Python's own, with a kernel behind it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from nsbox_testing.terminals import NSBOX, PROMPT, Screen, bash

COMMAND = [sys.executable, "-P", "-m", "nsbox", "python"]


def nsbox(workspace: Path, *words: str, **options: object) -> subprocess.CompletedProcess[str]:
    streams = {} if "input" in options else {"stdin": subprocess.DEVNULL}
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        [*COMMAND, *words], cwd=workspace, capture_output=True, text=True, timeout=50, check=False, **streams, **options
    )


# ---- one program


@pytest.mark.parametrize(
    "code",
    [
        "print(6 * 7)",
        "1 + 1",  # as with python -c, its value isn't shown
        "import sys; print('out'); print('err', file=sys.stderr)",
        "import sys; print(sys.argv)",
        "print(__name__)",
        "import sys; sys.exit(3)",
        "raise SystemExit('a message')",
        "raise SystemExit",
        "def f():\n    return 1 / 0\nf()",
        "x = (",
        "import os; os._exit(9)",
        "import os; os.abort()",
        "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "import atexit; atexit.register(print, 'at the end'); print('before')",
        "import sys; sys.stdout.write('no line end')",
        "import sys; sys.stdout.buffer.write(bytes(range(256)).replace(b'\\r', b''))",
        "",
    ],
)
def test_as_python(workspace: Path, code: str) -> None:
    """Output, the last line of an error and the status are those of `python -c`."""
    words = [code, "one", "-x", "--json", "--", "two"]
    ours = subprocess.run([*COMMAND, "-c", *words], cwd=workspace, stdin=subprocess.DEVNULL, capture_output=True)
    plain = [sys.executable, "-I", "-c", *words]
    theirs = subprocess.run(plain, cwd=workspace, stdin=subprocess.DEVNULL, capture_output=True)
    status = theirs.returncode if theirs.returncode >= 0 else 128 - theirs.returncode
    assert (ours.returncode, ours.stdout) == (status, theirs.stdout), ours.stderr
    assert ours.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:]


def test_it_is_contained(workspace: Path) -> None:
    """It has namespaces, a /tmp and a root of its own; what it writes in the workspace stays."""
    code = (
        "import os\nopen('/tmp/left', 'w').close(); open('made', 'w').write('x')\n"
        "print(os.readlink('/proc/self/ns/pid'), len([n for n in os.listdir('/proc') if n.isdigit()]))"
    )
    done = nsbox(workspace, "-c", code)
    namespace, count = done.stdout.split()
    assert namespace != os.readlink("/proc/self/ns/pid") and int(count) <= 2
    assert not os.path.exists("/tmp/left")
    assert (workspace / "made").read_text() == "x"


def test_options_of_the_policy(workspace: Path) -> None:
    """They are those of `nsbox run`."""
    (workspace / "hidden").write_text("secret")
    done = nsbox(
        workspace,
        "--deny",
        "hidden",
        "--env",
        "NAME=value",
        "-c",
        "import os; print(os.environ['NAME']); open('hidden')",
    )
    assert (done.returncode, done.stdout) == (1, "value\n") and "PermissionError" in done.stderr
    done = nsbox(workspace, "--memory", "1G", "-c", "'x' * 10**10")
    assert done.returncode == 1 and done.stderr.endswith("MemoryError\n")
    (workspace / "below").mkdir()
    assert nsbox(workspace, "-C", "below", "-c", "import os; print(os.getcwd())").stdout == f"{workspace}/below\n"


def test_file(workspace: Path, tmp_path: Path) -> None:
    """A file is a program, wherever it is; tracebacks have its name and its lines."""
    path = tmp_path / "p.py"
    path.write_bytes("# coding: latin-1\nimport sys\nprint(sys.argv[1:], 'ä')\n1 / 0\n".encode("latin-1"))
    done = nsbox(workspace, str(path), "-c", "x")
    assert (done.returncode, done.stdout) == (1, "['-c', 'x'] ä\n")
    assert f'File "{path}", line 4' in done.stderr and "    1 / 0\n" in done.stderr


def test_variable_of_a_file(workspace: Path) -> None:
    """A file's own path is absolute, as Python's; other code has none."""
    (workspace / "own.py").write_text("import sys\nprint(__file__, sys.argv[0])\nprint(open(__file__).read(6))\n")
    assert nsbox(workspace, "own.py").stdout == f"{workspace.resolve()}/own.py own.py\nimport\n"
    assert json.loads(nsbox(workspace, "--json", "./own.py").stdout)["stdout"].startswith(
        f"{workspace.resolve()}/own.py"
    )
    for done in (nsbox(workspace, "-c", "__file__"), nsbox(workspace, "-", input="__file__")):
        assert done.returncode == 1 and "NameError" in done.stderr


def test_stdin_is_a_program(workspace: Path) -> None:
    """Without a terminal, or as -; nothing is left of it for the program."""
    program = "import sys\nprint(sys.argv, repr(sys.stdin.read()))\n"
    assert nsbox(workspace, input=program).stdout == "['-'] ''\n"
    assert nsbox(workspace, "-", "a", input=program).stdout == "['-', 'a'] ''\n"
    done = nsbox(workspace, input="print(1)\nx = (\n")
    assert done.returncode == 1 and done.stdout == "" and 'File "<stdin>"' in done.stderr


def test_streams_are_live(workspace: Path) -> None:
    """What is printed comes at once, and what comes in is read: the streams are the caller's own."""
    code = "import sys\nprint('first', flush=True)\nprint('got', sys.stdin.readline(), end='', flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [*COMMAND, "-c", code], cwd=workspace, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin and process.stdout
        assert process.stdout.readline() == "first\n"
        process.stdin.write("words\n")
        process.stdin.flush()
        assert process.stdout.readline() == "got words\n"
        process.stdin.close()
    assert process.returncode == 0


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams(workspace: Path, closed: str) -> None:
    """A stream that is closed is an empty one."""
    line = f"{NSBOX} python -c 'import os; print(1); os._exit(7)' {closed}"
    assert subprocess.run(["sh", "-c", line], cwd=workspace, capture_output=True).returncode == 7


def test_json(workspace: Path) -> None:
    """--json prints the record, and nothing else; the status is the program's."""
    done = nsbox(
        workspace, "--json", "-c", "import sys\nprint('out')\n[sys.argv[1:], sys.stdin.read()]", "a", input="in"
    )
    record = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    assert (record["schema"], record["stdout"], record["value"]) == ("nsbox.python/1", "out\n", [["a"], "in"])
    done = nsbox(workspace, "--json", "-c", "1 / 0")
    record = json.loads(done.stdout)
    assert done.returncode == 1 and record["exception"]["type"] == "ZeroDivisionError"
    done = nsbox(workspace, "--json", "--timeout", "0.5", "-c", "while True: pass")
    assert done.returncode == 124 and json.loads(done.stdout)["cause"] == "timeout"


def test_timeout(workspace: Path) -> None:
    """After --timeout the code is ended; the status is that of `nsbox run`."""
    done = nsbox(workspace, "--timeout", "3", "-c", "print('begun', flush=True)\nwhile True: pass")
    assert (done.returncode, done.stdout) == (124, "begun\n")
    assert done.stderr == "nsbox: --timeout: the code was ended after 3 s\n"


def test_network_list(workspace: Path) -> None:
    """--allow-net opens what it lists, and nothing else; the control is the host's network."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        code = f"import socket; socket.create_connection(('localhost', {port}), 10); print('connected')"
        for words, is_open in (
            (["--network", "host"], True),
            (["--allow-net", f"localhost:{port}"], True),
            (["--allow-net", "a.example"], False),
            ([], False),
        ):
            for more in ([], ["--json"]):
                done = nsbox(workspace, *words, *more, "-c", code)
                assert done.returncode == (0 if is_open else 1), (words, done)
    other = "import socket; socket.create_connection(('b.example', 443))"
    refused = nsbox(workspace, "--allow-net", "a.example", "-c", other).stderr.splitlines()[-1]
    assert refused.startswith("nsbox: ") and "--allow-net b.example" in refused


def test_overlay(workspace: Path) -> None:
    """--overlay throws away what changes in the workspace; the control keeps it."""
    code = "open('made', 'w').write('x'); print(open('made').read())"
    assert nsbox(workspace, "--overlay", "-c", code).stdout == "x\n"
    assert not (workspace / "made").exists()
    assert nsbox(workspace, "-c", code).stdout == "x\n" and (workspace / "made").exists()


def test_imports(workspace: Path) -> None:
    """--import makes a module known before the code."""
    assert (
        nsbox(workspace, "--import", "json", "--import", "os.path", "-c", "print(json.dumps(1), os.sep)").stdout
        == "1 /\n"
    )
    done = nsbox(workspace, "--import", "nothing_of_that_name", "-c", "1")
    assert done.returncode == 1
    assert (
        done.stderr
        == "nsbox: --import: nothing_of_that_name: ModuleNotFoundError: No module named 'nothing_of_that_name'\n"
    )


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (["-c"], 2, "nsbox python: -c: needs a value"),
        (["nothing.py"], 2, "nsbox: nothing.py: No such file or directory"),
        (["."], 2, "nsbox: .: Is a directory"),
        (["bad.py"], 2, "nsbox: bad.py: isn't Python source: "),
        (["--save-images", ".", "-c", "1"], 2, "nsbox: --save-images: is for the prompt"),
        (["--import", "a b", "-c", "1"], 2, "nsbox: --import: has 'a b', which is no name of a module"),
        (["--python", "/nonexistent/python", "-c", "1"], 125, "/nonexistent/python"),
        (["--python", "/bin/sh", "-c", "1"], 125, "/bin/sh"),
        (["--memory", "much", "-c", "1"], 2, "nsbox: --memory: 'much' isn't a size"),
        (
            ["--backend", "passthrough", "--require", "nothing", "-c", "1"],
            125,
            "the passthrough backend can't make them",
        ),
        (["--chdir", "/nonexistent", "-c", "1"], 125, "/nonexistent"),
        (["--timeout", "soon", "-c", "1"], 2, "'soon' isn't a number of seconds"),
    ],
)
def test_errors(workspace: Path, words: list[str], status: int, told: str) -> None:
    """An error names what is wrong in the words of the command line."""
    (workspace / "bad.py").write_bytes(b"\xff\xfe\xff")
    done = nsbox(workspace, *words)
    assert (done.returncode, done.stdout) == (status, ""), done
    assert told in done.stderr


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals(workspace: Path, number: int, status: int) -> None:
    """SIGINT is a KeyboardInterrupt in the code, as outside; SIGTERM ends it."""
    code = "import time\nprint('running', flush=True)\nwhile True: time.sleep(0.01)"
    with subprocess.Popen(
        [*COMMAND, "-c", code],
        cwd=workspace,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout and process.stdout.readline() == "running\n"
        process.send_signal(number)
        _, said = process.communicate(timeout=40)
    assert process.returncode == status, said
    assert ("KeyboardInterrupt" in said) == (number == signal.SIGINT)


# ---- one program at a terminal


def test_terminal(workspace: Path) -> None:
    """A program has a terminal, of the user's size, that isn't the user's; it reads what is typed."""
    code = (
        "import os, sys; print('is', sys.stdout.isatty(), *os.get_terminal_size()); print('go'+'t', input('as'+'k '))"
    )
    with bash(workspace, size=(33, 111)) as screen:
        screen.line(f'{NSBOX} python -c "{code}"; echo "status $?"')
        screen.until("is True 111 33\n")
        screen.until("ask ")
        screen.line("words")
        screen.until("got words\n")
        screen.until("status 0\n")


def test_interrupted_at_a_terminal(workspace: Path) -> None:
    """Ctrl-C is a KeyboardInterrupt; Ctrl-Z stops the program, and fg continues it."""
    (workspace / "p.py").write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGCONT, lambda *_: os.write(1, b'continued\\n'))\n"  # print() may be what it interrupts
        "try:\n    print('begun')\n    while True: time.sleep(0.01)\nexcept KeyboardInterrupt:\n    print('interrupted')\n"
    )
    with bash(workspace) as screen:
        screen.line(f"{NSBOX} python p.py; echo 'status' $?")
        screen.until("begun\n")
        screen.type("\x1a")
        screen.until("Stopped")
        screen.until(PROMPT)
        screen.line("fg")
        screen.until("continued\n")  # only now is it in the foreground: earlier, Ctrl-C would be the shell's
        screen.type("\x03")
        screen.until("interrupted\n")
        screen.until(PROMPT)


def test_pipeline_at_a_terminal(workspace: Path) -> None:
    """In a pipeline, it reads from the terminal, which stays as it is for the other programs."""
    with bash(workspace) as screen:
        screen.line(f"{NSBOX} python -c \"print('go'+'t', input())\" | cat; echo 'en''d'")
        screen.line("words")
        screen.until("got words\nend\n")


# ---- the prompt


@contextmanager
def prompt(workspace: Path, *words: str, ends_by: str = "\x04", status: int = 0) -> Iterator[Screen]:
    """A user at the prompt, who ends it by Ctrl-D, or by what is typed then; and with which status it ends."""
    env = {"XDG_STATE_HOME": str(workspace.parent / "state"), "TERM": "dumb", "LC_ALL": "C.UTF-8"}
    with Screen([*COMMAND, *words], workspace, env) as screen:
        screen.until("Python [0-9.]+ in a sandbox.*\n")
        screen.until(">>> ")
        yield screen
        screen.type(ends_by)
        screen.rest()
        assert screen.status() == status


def says(screen: Screen, line: str) -> str:
    """Type a line; return what is shown up to the next prompt."""
    screen.line(line)
    screen.until("\n")
    return screen.until("(>>>|\\.\\.\\.) ")


def test_prompt(workspace: Path) -> None:
    """Values, output, blocks of several lines and tracebacks look as they do in Python."""
    with prompt(workspace, "--import", "math") as screen:
        assert says(screen, "x = 41") == ""
        assert says(screen, "x + 1") == "42\n"
        assert says(screen, "None") == ""
        assert says(screen, "'a' 'ä'") == "'aä'\n"
        assert says(screen, "math.floor(2.5)") == "2\n"
        assert says(screen, "print('one'); x") == "one\n41\n"
        assert says(screen, "for i in range(2):") == ""
        assert says(screen, "    print(i)") == ""
        assert says(screen, "") == "0\n1\n"
        failure = says(screen, "1 / 0")
        assert failure.startswith("Traceback") and failure.endswith("\nZeroDivisionError: division by zero\n")
        assert "SyntaxError" in says(screen, "x = = 1")
        assert "input" in says(screen, "input()")
        assert says(screen, "x") == "41\n"


def clear(screen: Screen) -> None:
    """Press Ctrl-C at the prompt until it is seen. In the moment before readline waits, Python misses a signal."""
    for patience in (5, 5, 40):
        screen.type("\x03")
        with suppress(TimeoutError):
            screen.until("KeyboardInterrupt\n>>> ", patience)
            return
    raise AssertionError("no interrupt was seen")


def test_prompt_interrupts(workspace: Path) -> None:
    """Ctrl-C interrupts the code and keeps the variables; at the prompt, it clears what was typed."""
    with prompt(workspace) as screen:
        says(screen, "import time; x = 1")
        screen.line("print('run' + 'ning', flush=True); time.sleep(1000)")
        screen.until("\nrunning\n")
        screen.type("\x03")
        assert "KeyboardInterrupt" in screen.until(">>> ")
        assert says(screen, "x") == "1\n"
        screen.line("def f():")
        screen.until(r"\.\.\. ")
        clear(screen)
        assert says(screen, "x") == "1\n"


def test_prompt_with_deaf_code(workspace: Path) -> None:
    """Code that ignores Ctrl-C is ended by the third one; a new kernel begins."""
    with prompt(workspace) as screen:
        says(screen, "import os, signal, time; x = 1")
        screen.line(
            "signal.signal(2, lambda *_: os.write(1, b'no' b't me\\n')); print('be'+'gun', flush=True); [time.sleep(0.01) for _ in iter(int, 1)]"
        )
        screen.until("\nbegun\n")
        for _ in range(2):
            screen.type("\x03")
            screen.until("not me\n")
        screen.type("\x03")
        screen.until("the kernel has ended; a new one begins")
        screen.until(">>> ")
        assert "NameError" in says(screen, "x")


def test_prompt_after_a_crash(workspace: Path) -> None:
    """A kernel that ends is told, with its signal, and another one begins."""
    with prompt(workspace) as screen:
        says(screen, "x = 1")
        told = says(screen, "import os; os.kill(os.getpid(), 11)")
        assert "the kernel has ended: it was ended by SIGSEGV; a new one begins" in told
        assert told.count("has ended") == 1 and "reset()" not in told
        assert "NameError" in says(screen, "x")


def test_prompt_history(workspace: Path) -> None:
    """The next prompt has the lines of this one, but no command sees them."""
    state = workspace.parent / "state/nsbox"
    with prompt(workspace) as screen:
        says(screen, "'li' + 'ne one'")
        says(screen, "def f():")
        says(screen, "    return 1")
        says(screen, "")
        assert "FileNotFoundError" in says(screen, f"open({str(state / 'python_history')!r}).read()")
    kept = state / "python_history"
    assert kept.stat().st_mode & 0o777 == 0o600 and "    return 1\n" in kept.read_text()
    with prompt(workspace) as screen:
        for _ in range(4):
            screen.type("\x10")  # Ctrl-P, as the arrow up
        screen.type("\r")
        screen.until("line one'\n>>> ")


def test_prompt_without_a_state(workspace: Path) -> None:
    """Where the directory can't be made, there is no history, and nothing else is missing."""
    (workspace.parent / "state").write_text("a file")
    with prompt(workspace) as screen:
        assert says(screen, "1 + 1") == "2\n"


IMAGE = "type('I', (), {'_repr_png_': lambda self: b'x' * 12345, '__repr__': lambda self: '<I>'})()"


def test_prompt_images(workspace: Path, tmp_path: Path) -> None:
    """Images are named or, with --save-images, saved as new files."""
    with prompt(workspace) as screen:
        assert says(screen, IMAGE) == "<I>\n[image/png, 12 kB]\n"
    (tmp_path / "image-1.png").write_text("mine")
    with prompt(workspace, "--save-images", str(tmp_path)) as screen:
        assert says(screen, IMAGE).endswith(f"[image/png, 12 kB: {tmp_path}/image-2.png]\n")
    assert (tmp_path / "image-2.png").read_bytes() == b"x" * 12345 and (tmp_path / "image-1.png").read_text() == "mine"


def test_prompt_images_in_the_workspace(workspace: Path) -> None:
    """A link that the code plants at an image's place isn't followed, nor a directory that it exchanges."""
    (workspace / "images").mkdir()
    target = workspace.parent / "target"
    with prompt(workspace, "--save-images", "images") as screen:
        says(screen, f"import os; os.symlink({str(target)!r}, 'images/image-1.png')")
        assert "images/image-2.png" in says(screen, IMAGE)
        says(screen, f"os.rename('images', 'old'); os.symlink({str(workspace.parent)!r}, 'images')")
        says(screen, IMAGE)
    assert not target.exists() and sorted(os.listdir(workspace / "old")) == [
        "image-1.png",
        "image-2.png",
        "image-3.png",
    ]
    assert not list(workspace.parent.glob("image-*"))


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--json"], "nsbox: --json: is for a program, not for the prompt"),
        (["--save-images", "nothing"], "nsbox: --save-images: nothing: No such file or directory"),
        (["--import", "nothing_of_that_name"], "nsbox: --import: nothing_of_that_name: ModuleNotFoundError"),
    ],
)
def test_prompt_errors(workspace: Path, words: list[str], told: str) -> None:
    """What is wrong is one line, and no prompt comes."""
    with Screen([*COMMAND, *words], workspace) as screen:
        shown = screen.rest()
        assert told in shown and shown.count("\n") == 1 and screen.status() in (1, 2)


@pytest.mark.parametrize(("line", "status"), [("exit()", 0), ("import sys; sys.exit(3)", 3), ("quit()", 0)])
def test_prompt_ends(workspace: Path, line: str, status: int) -> None:
    """exit() ends the prompt, with its status."""
    with prompt(workspace, ends_by=f"{line}\r", status=status):
        pass
