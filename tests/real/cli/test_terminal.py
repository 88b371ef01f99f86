"""`nsbox run` at a real terminal: what works outside works inside, and nothing typed elsewhere reaches it.

Each test is a user in front of an interactive bash, or of the command itself as the terminal's only program.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
from pathlib import Path

import pytest
from nsbox_testing import needs
from nsbox_testing.terminals import NSBOX, PROMPT, Screen, bash
from nsbox_testing.typed import PYTHON, RUN, WAYS, code, running, words

# ---- the terminal itself


@pytest.mark.parametrize("way", WAYS)
def test_size(workspace: Path, way: str) -> None:
    """The size is the user's, and a change of it is SIGWINCH, also on a terminal that doesn't know its size."""
    program = code(
        "import os, signal, sys, time\n"
        "signal.signal(signal.SIGWINCH, lambda *_: os.write(1, b'now %d %d\\n' % os.get_terminal_size(0)))\n"
        "print('at fir' + 'st', *os.get_terminal_size(0))\nwhile True: time.sleep(0.01)  # a signal right before pause() would wait\n",
        workspace,
    )
    with bash(workspace, size=(33, 111)) as screen:
        screen.line(f"{way}{program}")
        screen.until("at first 111 33\n")
        screen.resize(50, 132)
        screen.until("now 132 50\n")
        screen.resize(0, 0)
        screen.until("now 0 0\n")
        screen.resize(2, 3)
        screen.until("now 3 2\n")
        screen.type("\x03")


@pytest.mark.parametrize("way", WAYS[1:3])
def test_names_of_the_terminal(workspace: Path, way: str) -> None:
    """/dev/tty, /dev/stderr and what tty(1) tells can be opened: by the command's own user, whichever that is."""
    if "--keep" in way and os.geteuid() == 0:
        pytest.skip("root's command is another user outside, whose terminal it isn't")
    with bash(workspace) as screen:
        screen.line(f"{way}sh -c 'echo on''e > /dev/tty; echo tw''o > /dev/stderr; echo thr''ee > $(tty); echo o''k'")
        screen.until("one\ntwo\nthree\nok\n")


def test_it_is_another_terminal(workspace: Path) -> None:
    """The command has no descriptor of the user's terminal, and its session isn't the user's."""
    program = code(
        "import os\nprint('me', os.ttyname(0) if 0 else '', os.fstat(0).st_rdev, os.fstat(2).st_rdev, len(os.listdir('/proc/self/fd')))",
        workspace,
    )
    with bash(workspace) as screen:
        screen.line(f"{RUN} -- {program}")
        screen.until(r"me ")
        first, second, count = screen.until("\n").split()
        screen.until(PROMPT)
        assert first == second != str(os.fstat(screen.fd).st_rdev) and int(count) == 4
        screen.line(f"{PYTHON} -c 'import os; print(\"us\", os.fstat(0).st_rdev)'")
        screen.until("\nus ")
        assert screen.until("\n") != first


def test_streams_that_lead_elsewhere(workspace: Path) -> None:
    """A pipe or file stays what it is, byte for byte; the others are the terminal."""
    with bash(workspace) as screen:
        screen.line(f"printf 'a\\nb\\n' | {RUN} -- sh -c 'cat; tty <&1 >/dev/null && test ! -t 0 && echo ou''t'")
        screen.until("a\nb\nout\n")
        screen.line(f"{RUN} -- sh -c 'test -t 0 && test ! -t 1 && echo on''e; echo tw''o >&2' | od -c | tr -d ' '")
        screen.until("two\n")
        screen.until(r"one\\n\n")
        screen.line(f"{RUN} -- sh -c 'read line; echo \"go''t $line\"' > file; cat file")
        screen.until("cat file\n")
        screen.line("words")
        screen.until("got words\n")
        screen.line(f"{RUN} -- sh -c 'echo a; echo b >&2' < /dev/null 2> err; od -c err | tr -d ' '")
        screen.until(r"\nb\\n\n|\d+b\\n\n")


@pytest.mark.parametrize(
    "others", ["| cat", "| sh -c 'cat; echo ask''ing; read line < /dev/tty; echo \"other $line\"'"]
)
def test_a_pipeline_reads(workspace: Path, others: str) -> None:
    """In a pipeline the command gets the terminal when it reads; the other programs can as well."""
    with bash(workspace) as screen:
        screen.line(f"{RUN} -- sh -c 'echo read''ing >&2; read line; echo \"go''t $line\"' {others}; echo en''d")
        screen.until("reading\n")
        screen.line("words")
        screen.until("got words\n")
        if "other" in others:
            screen.until("asking\n")
            screen.line("mine")
            screen.until("other mine\n")
        screen.until("end\n")


@pytest.mark.parametrize("key", ["\x03", "\x1a"])
def test_a_pipeline_is_signalled(workspace: Path, key: str) -> None:
    """Ctrl-C and Ctrl-Z are the whole pipeline's, as outside."""
    with bash(workspace) as screen:
        screen.line(f"{RUN} -- sh -c '{running(workspace)} >&2; echo any''way >&2' | cat; echo \"is $?\"")
        screen.until("running\n")
        screen.type(key)
        if key == "\x1a":
            screen.until("Stopped")
            screen.line("fg")
            screen.until("again\n")
            screen.type("\x03")
        assert "anyway" not in screen.until(PROMPT)


def test_a_script_is_interrupted(workspace: Path) -> None:
    """Ctrl-C ends a script whose line is killed by it, as outside, and not one whose line goes on."""
    (workspace / "script").write_text(f"{RUN} -- sh -c '{running(workspace)}'\necho nex''t\n")
    (workspace / "patient").write_text(
        f"{RUN} -- sh -c 'trap : INT; echo ru''nning; read line; read line'\necho nex''t\n"
    )
    with bash(workspace) as screen:
        screen.line("bash script")
        screen.until("running\n")
        screen.type("\x03")
        assert "next" not in screen.until(PROMPT)
        screen.line('echo "is $?"')
        screen.until("is 130\n")
        screen.line('bash patient; echo "is $?"')
        screen.until("running\n")
        screen.type("\x03")
        screen.line("a")
        screen.line("b")
        assert "next" in screen.until("is 0\n")


# ---- settings

RAW = "import os, signal, sys, termios, tty\ntty.setraw(0)\nos.write(1, b'ready\\r\\n')\n"


@pytest.mark.parametrize(
    "end", ["raise SystemExit", "os.kill(os.getpid(), 9)", "os.kill(os.getpid(), 15)", "os.abort()"]
)
@pytest.mark.parametrize("way", WAYS[1:3])
def test_settings_are_restored(workspace: Path, way: str, end: str) -> None:
    """Whatever a command has set, and however it ends; a shell without job control doesn't see to it."""
    if "SystemExit" in end and "--keep" in way:
        pytest.skip("it is the user's own terminal: what a program leaves in order is meant")
    program = code(RAW + end, workspace)
    line = f"ulimit -c 0; stty -g > before; {way}{program}; stty -g > after; cmp before after && echo sa''me"
    with Screen(["sh", "-c", line], workspace) as screen:
        screen.until("ready\n")
        screen.until("same\n")


LATE = """
import runpy, sys, time
from nsbox._cli.run import link
def late(self, letter, *content, send=link.Link.send):
    time.sleep(0.5 if letter == link.STARTED else 0)
    send(self, letter, *content)
link.Link.send = late
runpy.run_module("nsbox", run_name="__main__", alter_sys=True)
"""


def test_output_before_the_terminal_is_raw(workspace: Path) -> None:
    """A command that prints before nsbox knows that it has started: the user's terminal adds nothing to its bytes."""
    program = code("import os, tty\ntty.setraw(0)\nos.write(1, b'one\\ntwo\\r\\n')", workspace)
    with Screen([sys.executable, "-P", "-c", LATE, "run", "--", *shlex.split(program)], workspace) as screen:
        assert screen.status() == 0
        assert screen.rest() == "one\ntwo\n"
        assert "\r" not in screen.shown


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP, signal.SIGSEGV])
def test_settings_after_nsbox_is_killed(workspace: Path, number: int) -> None:
    """When nsbox itself is killed, the settings are restored too, and the command ends."""
    program = code("print('rea' + 'dy'); input()", workspace)
    (workspace / "script").write_text(f"ulimit -c 0; stty -g > before; exec 3>&1; {RUN} -- {program} 3>&- & wait\n")
    line = (
        f"ulimit -c 0; stty -g > before; sh -c 'echo $$ > pid; exec {RUN} -- {program}'; "
        "while ! cmp -s before after; do stty -g > after; done; echo sa''me"
    )
    with Screen(["sh", "-c", line], workspace) as screen:
        screen.until("ready\n")
        os.kill(int((workspace / "pid").read_text()), number)
        screen.until("same\n")


def test_settings_while_it_is_stopped(workspace: Path) -> None:
    """The shell finds them as they were, and the command as it has set them."""
    program = code(
        RAW + "os.kill(0, signal.SIGSTOP)\nprint(termios.tcgetattr(0)[3] & termios.ICANON, end='\\r\\n')", workspace
    )
    with bash(workspace) as screen:
        screen.line("stty -echo; stty -g > before")
        screen.line(f"{RUN} -- {program}")
        screen.until("ready\n")
        screen.until("Stopped")
        screen.line("stty -g | cmp - before && echo same; stty echo; fg")
        screen.until("same\n")
        screen.until(r"\n0\n")


# ---- the end of the terminal


@pytest.mark.parametrize("under", ["", "shell"])
def test_closed_terminal(workspace: Path, under: str) -> None:
    """A terminal that is closed is SIGHUP for the command, which can put away what it has begun."""
    line = f"{RUN} -- sh -c 'trap \"echo hung up > got; exit\" HUP; echo ru''nning; while :; do read line || sleep 0.01; done'"
    if under:
        screen = bash(workspace)
        screen.line(line)
    else:
        screen = Screen(shlex.split(line), workspace)
    with screen:
        screen.until("running\n")
        screen.close()
        screen.status()
    until_written(workspace / "got")
    assert (workspace / "got").read_text() == "hung up\n"


def until_written(path: Path) -> None:
    """Wait for a file to have something in it, which another process writes."""
    import time

    end = time.monotonic() + 60
    while not path.exists() or not path.stat().st_size:
        assert time.monotonic() < end
        time.sleep(0.005)


def test_terminal_closed_while_much_is_printed(workspace: Path) -> None:
    """In the middle of a flood of output nsbox ends, and leaves nothing."""
    with Screen(words("-- sh -c 'trap \"\" HUP; yes'"), workspace) as screen:
        screen.until("y\ny\n")
        screen.close()
        assert screen.status() in (128 + signal.SIGPIPE, 1, 128 + signal.SIGHUP)


def test_command_without_its_terminal(workspace: Path) -> None:
    """A command that closes its terminal goes on, and its end is the end."""
    program = code(
        "import os\nprint('clo' + 'sing')\nfor fd in 0, 1, 2: os.close(fd)\n"
        "open('got', 'w').write('done')\nos._exit(5)",
        workspace,
    )
    with Screen(words(f"-- {program}"), workspace) as screen:
        screen.until("closing\n")
        screen.rest()
        assert screen.status() == 5
    assert (workspace / "got").read_text() == "done"


def test_all_output_is_shown(workspace: Path) -> None:
    """Also what a command prints right before its end, and more than the terminal takes at once."""
    for count in (1, 20000):
        with Screen(words(f"-- seq {count}"), workspace) as screen:
            shown = screen.rest()
            assert screen.status() == 0
        assert shown.split() == [str(i) for i in range(1, count + 1)]


def test_errors_at_a_terminal(workspace: Path) -> None:
    """What doesn't start is reported in one line, and the settings are as they were."""
    with bash(workspace) as screen:
        screen.line(
            f"stty -g > before; {RUN} -- nosuch''program; echo \"is $?\"; stty -g | cmp - before && echo sa''me"
        )
        assert screen.until("is 127\n").count("nosuchprogram") == 1
        screen.until("same\n")


@pytest.mark.parametrize("fd", [0, 1, 2])
def test_a_standard_descriptor_is_closed(workspace: Path, fd: int) -> None:
    """The others are the terminal, and the closed one stays closed."""
    with bash(workspace) as screen:
        closed = "<&-" if fd == 0 else f"{fd}>&-"
        screen.line(
            f"{RUN} -- sh -c 'for i in 0 1 2; do test -t $i && echo $i; done > li''st' {closed}; paste -s -d, list"
        )
        screen.until(f"\\n{','.join(str(i) for i in range(3) if i not in (fd, 1))}\n")


# ---- programs


def test_job_control_inside(workspace: Path) -> None:
    """A shell inside has jobs of its own: Ctrl-Z, fg and Ctrl-C are theirs, and its exit brings the outer shell back."""
    program = code(
        "import os, signal\nsignal.signal(signal.SIGINT, signal.SIG_DFL)\n"
        "signal.signal(signal.SIGCONT, lambda *_: os.write(1, b'continued\\n'))\n"
        "print('running')\nwhile True: signal.pause()",
        workspace,
    )
    with bash(workspace) as screen:
        screen.line(f"PS1='IN''SIDE> ' {RUN} --env PS1 -- bash --norc --noediting -i")
        inside = "INSIDE> "
        assert "job control" not in screen.until(inside)
        screen.line(program)
        screen.until("running\n")
        screen.type("\x1a")
        screen.until("Stopped")
        screen.until(inside)
        screen.line("jobs; fg")
        screen.until("Stopped.*p0.py")
        screen.until("continued\n")  # the shell has given it the terminal before
        screen.type("\x03")
        screen.until(inside)
        screen.line("exit 9")
        screen.until(PROMPT)
        screen.line('echo "is $?"')
        screen.until("is 9\n")


@pytest.mark.parametrize("shell", ["sh", "bash --norc --noprofile --noediting"])
@pytest.mark.parametrize("keep", ["", "--keep-session "])
def test_interactive_shells(workspace: Path, shell: str, keep: str) -> None:
    """`sh -i` complains of nothing, with our session too, and afterwards the terminal is the outer shell's."""
    program = running(workspace)
    with bash(workspace) as screen:
        screen.line(f"PS1='IN''SIDE> ' {RUN} {keep}--env PS1 -- {shell} -i")
        told = screen.until("INSIDE> ")
        assert not any(word in told for word in ("tty", "job control", "terminal", "ioctl"))
        screen.line(program)
        screen.until("running\n")
        screen.type("\x03")
        screen.until("INSIDE> ")
        screen.line("exit")
        screen.until(PROMPT)
        screen.line("echo ba''ck")
        screen.until("back\n")


def test_users_shell(workspace: Path) -> None:
    """`nsbox shell` runs the user's own, where the sandbox has it; what comes after -- is for the shell."""
    with bash(workspace) as screen:
        screen.line(f"SHELL=/bin/bash {NSBOX} shell -- --norc --noediting -i")
        screen.until(r"[$#] ")
        screen.line("echo $0 is in $PWD")
        screen.until(f"/bin/bash is in {workspace}\n")
        screen.line("exit")
        screen.until(PROMPT)
        screen.line(f"SHELL=/usr/sbin/nologin {NSBOX} shell -- -c 'echo $0'")
        screen.until("/bash\n|/bin/sh\n")


@needs.programs("vim")
def test_vim(workspace: Path) -> None:
    """An editor: its screen, keys, Ctrl-Z and fg, its file.

    Keys come only when it waits for one: what is typed sooner may be lost, when it sets the terminal's mode.
    """
    (workspace / "rc").write_text("autocmd SafeState * call echoraw('<' .. mode() .. '>')\n")
    with bash(workspace) as screen:
        screen.line(f"{RUN} -- vim -u rc -N text")
        screen.until(r"\[New\]")
        screen.until("<n>")
        screen.type("ihello")
        screen.until("hello")
        screen.type("\x1b")
        screen.until("<n>")
        screen.type("\x1a")
        screen.until(r"\x1b\[\?1049l")
        screen.until("Stopped")
        screen.line("echo ba''ck; fg")
        screen.until("back\n")
        screen.until("hello")
        screen.until("<n>")
        screen.type(":wq\r")
        screen.until(PROMPT)
        assert (workspace / "text").read_text() == "hello\n"


@needs.programs("less")
@pytest.mark.parametrize(
    "line",
    [f"{RUN} -- less text", f"cat text | {RUN} -- less", f"{RUN} -- cat text | less", f"{RUN} -c 'cat text | less'"],
)
def test_less(workspace: Path, line: str) -> None:
    """A pager, before, behind and in a pipeline: keys are its, and the terminal is as it was afterwards."""
    (workspace / "text").write_text("".join(f"line {i} of text\n" for i in range(1, 500)))
    with bash(workspace) as screen:
        screen.line("stty -g > before")
        screen.until(PROMPT)
        screen.line(line)
        screen.until("line 1 of text\n")
        screen.type("/400 of\r")
        screen.until("line 400 of|400 of")
        screen.type("G")
        screen.until("line 499 of text")
        screen.type("q")
        screen.until(PROMPT)
        screen.line("stty -g | cmp - before && echo sa''me")
        screen.until("same\n")


def test_curses(workspace: Path) -> None:
    """A program that draws: single keys, the size, and its change."""
    program = code(
        "import curses\n"
        "def main(screen):\n    screen.timeout(20)  # a signal between two reads wakes nobody\n"
        "    while True:\n"
        "        screen.addstr(0, 0, f'size {curses.LINES} {curses.COLS}   '); screen.refresh()\n"
        "        key = screen.getch()\n"
        "        if key == ord('q'): return\n        if key == -1: continue\n"
        "        screen.addstr(1, 0, f'key {curses.keyname(key).decode()}   ')\n"
        "        if key == curses.KEY_RESIZE: curses.update_lines_cols()\n"
        "curses.wrapper(main)\nprint('the en' + 'd')",
        workspace,
    )
    with bash(workspace) as screen:
        screen.line(f"{RUN} -- {program}")
        screen.until("size 24 80")
        screen.type("x")
        screen.until("key x")
        screen.type("\x1bOA")
        screen.until("KEY_UP")
        screen.resize(30, 100)
        screen.until("KEY_RESIZE|RESIZE")
        screen.type("q")
        screen.until("the end\n")


@needs.programs("tmux")
def test_in_tmux(workspace: Path) -> None:
    """In a window of tmux's."""
    with bash(workspace) as screen:
        screen.line(
            f"tmux -f /dev/null -S socket new '{RUN} -- sh -c \"echo in tm''ux; tty > na''me; read line; echo \\$line > got\"'"
        )
        screen.until("in tmux")
        screen.line("words")
        screen.until("exited")
    assert (workspace / "got").read_text() == "words\n"


@needs.programs("tmux")
def test_tmux_inside(workspace: Path) -> None:
    """A tmux of the sandbox's own: it draws, splits, detaches, and ends with the sandbox."""
    (workspace / "conf").write_text("set -g assume-paste-time 0\n")
    with bash(workspace) as screen:
        screen.line(
            f"{RUN} --env LC_ALL --env TERM -c 'tmux -f conf -S /tmp/socket new -x- -y- \"echo in tm''ux; cat\"; echo af''ter'"
        )
        screen.until("in tmux")
        screen.line("words")
        screen.until("words")
        screen.type("\x02d")
        screen.until("detached")
        screen.until("after\n")
        screen.until(PROMPT)
