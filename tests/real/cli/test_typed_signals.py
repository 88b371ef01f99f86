"""`nsbox run` at a real terminal: signals that are typed."""

from __future__ import annotations

from pathlib import Path

import pytest
from nsbox_testing.terminals import PROMPT, bash
from nsbox_testing.typed import RUN, WAYS, code, running


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("key", "status"), [("\x03", 130), ("\x1c", 131)])
def test_interrupt_and_quit(workspace: Path, way: str, key: str, status: int) -> None:
    """Ctrl-C and Ctrl-backslash end what runs, also below a program that waits for another (make, a shell)."""
    with bash(workspace) as screen:
        screen.line("ulimit -c 0")
        screen.until(PROMPT)
        screen.line(f"for i in 1 2 3; do {way}sh -c '{running(workspace)}; echo any''way'; done")
        screen.until("running\n")
        screen.type(key)
        if status == 131:  # which ends no loop
            screen.until("running\n")
            screen.type("\x03")
            status = 130
        shown = screen.until(PROMPT)
        assert "anyway" not in shown and "running" not in shown
        screen.line('echo "is $?"')
        screen.until(f"is {status}\n")


@pytest.mark.parametrize("way", WAYS)
def test_a_handler_of_the_interrupt(workspace: Path, way: str) -> None:
    """A program that handles SIGINT goes on, and its own exit status is the status."""
    program = code(
        "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, [2])  # a handler right before a read() would wait\n"
        "print('rea' + 'dy'); signal.sigwait([2]); print('inter' + 'rupted')\n"
        "print('got', input())\nraise SystemExit(7)",
        workspace,
    )
    with bash(workspace) as screen:
        screen.line(f'{way}{program}; echo "is $?"')
        screen.until("ready\n")
        screen.type("\x03")
        screen.until("interrupted\n")
        screen.line("words")
        screen.until("got words\nis 7\n")


@pytest.mark.parametrize("way", WAYS)
def test_stop_and_continue(workspace: Path, way: str) -> None:
    """Ctrl-Z stops what runs, and fg lets it go on with the terminal."""
    with bash(workspace) as screen:
        screen.line(f"{way}sh -c 'echo ru''nning; read line; echo \"go''t $line\"'")
        screen.until("running\n")
        screen.type("\x1a")
        screen.until("Stopped")
        screen.until(PROMPT)
        screen.line("echo at the sh''ell")
        screen.until("at the shell\n")
        screen.line("fg")
        screen.until("fg\n")
        screen.until("\n")
        screen.line("words")
        screen.until("got words\n")
        screen.until(PROMPT)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("number", ["STOP", "TSTP", "TTIN"])
def test_a_command_that_stops_itself(workspace: Path, way: str, number: str) -> None:
    """The shell has the terminal back; fg lets the command go on."""
    if number == "TTIN" and "--keep" not in way and way:
        pytest.skip("taken for a read: it is in the foreground, and goes on")
    with bash(workspace) as screen:
        screen.line(f"{way}sh -c 'kill -{number} $$; echo resu''med'")
        screen.until("Stopped")
        screen.until(PROMPT)
        screen.line("echo ba''ck; fg")
        screen.until("back\n")
        screen.until("resumed\n")


@pytest.mark.parametrize("options", ["", "--host "])
@pytest.mark.parametrize("flood", ["yes", "cat /dev/zero"])
def test_a_stop_beside_a_flood(workspace: Path, options: str, flood: str) -> None:
    """A command that stops itself stops nsbox, whatever it has left running that prints faster than is shown."""
    with bash(workspace) as screen:
        screen.line(f"{RUN} {options}-- sh -c '{flood} & sleep 0.1; kill -STOP $$; kill $!; echo resu''med'")
        screen.until("Stopped")
        screen.until(PROMPT)
        screen.line("echo ba''ck; fg")
        screen.until("back\n")
        screen.until("resumed\n")
        screen.until(PROMPT)


def test_an_end_beside_a_flood(workspace: Path) -> None:
    """What a command leaves running that floods the terminal doesn't keep nsbox from its end."""
    with bash(workspace) as screen:
        screen.line(f"{RUN} --host -- sh -c 'yes & echo $! > pid; sleep 0.1; exit 7'; echo \"is $?\"; kill $(cat pid)")
        screen.until("is 7\n")


@pytest.mark.parametrize("way", WAYS)
def test_background(workspace: Path, way: str) -> None:
    """A command in the background gets nothing that is typed: it is stopped when it reads; fg gives it the terminal."""
    with bash(workspace) as screen:
        screen.line(f"{way}sh -c 'read line; echo \"$line\" > got' &")
        screen.until(r"\[1\].*\n")
        screen.line("echo pass''word")
        screen.until("password\n")
        screen.line("while [ -z \"$(jobs -s)\" ]; do sleep 0.01; done; echo st''opped")
        screen.until("stopped\n")
        assert not (workspace / "got").exists()
        screen.line("fg")
        screen.until("fg\n")
        screen.until("\n")
        screen.line("mine")
        screen.until(PROMPT)
        screen.line("cat got; echo en''d")
        screen.until("mine\nend\n")


@pytest.mark.parametrize("way", WAYS)
def test_continued_in_the_background(workspace: Path, way: str) -> None:
    """Ctrl-Z and bg: it goes on without the terminal, and what is typed is the shell's."""
    program = code(
        "import os, time\nprint('running')\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
        "open('result', 'w').write('done\\n')\ninput()",
        workspace,
    )
    with bash(workspace) as screen:
        screen.line(f"{way}{program}")
        screen.until("running\n")
        screen.type("\x1a")
        screen.until("Stopped")
        screen.until(PROMPT)
        screen.line("bg")
        screen.until("bg\n")
        screen.line("touch go; while [ ! -s result ]; do sleep 0.01; done; cat result")
        screen.until("done\n")
        screen.line("echo mi''ne")
        screen.until("mine\n")
        screen.line("kill -9 %1; wait; echo en''d")
        screen.until("end\n")


def test_output_of_the_background(workspace: Path) -> None:
    """Lines of a command in the background begin where the others' do."""
    with bash(workspace) as screen:
        screen.line(f"{RUN} -- sh -c 'echo on''e; echo tw''o; touch do''ne' & wait")
        screen.until("one\ntwo\n")
        assert "\r" not in screen.shown.replace("\r\n", "").split("wait")[-1]
