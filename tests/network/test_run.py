"""`nsbox run` under a network list: what it says of a command that fails, which is what the list has refused to it."""

from __future__ import annotations

from collections.abc import Callable

Client = Callable[[str], list[str]]

RUN = """
def nsbox_run(*options, code, terminal=False):
    command = [sys.executable, "-P", "-m", "nsbox", "run", *options, "--", sys.executable, "-S", "-P", "-c", ASK + code]
    if terminal:
        import pty
        ours, theirs = pty.openpty()
        with subprocess.Popen(command, cwd=ws, stdin=theirs, stdout=theirs, stderr=theirs) as process:
            os.close(theirs)
            said = b""
            try:
                while data := os.read(ours, 4096):
                    said += data
            except OSError:
                pass
        os.close(ours)
        print(process.returncode, said.decode().replace("\\r\\n", "|"))
    else:
        done = subprocess.run(command, cwd=ws, capture_output=True, text=True)
        print(done.returncode, done.stdout.strip(), done.stderr.replace("\\n", "|"))
"""


def test_refusals(client: Client) -> None:
    """A line for each: with the option that would allow it; with a terminal too. --quiet leaves it out."""
    code = """
listed = ("--allow-net", "a.example:80", "--allow-net", "down.example:80", "--allow-net", "!c.a.example")
nsbox_run(*listed, code='sys.exit(str(ask("b.example", 80)))')
nsbox_run(*listed, code='sys.exit(str(ask("a.example", 5432)))')
nsbox_run(*listed, code='sys.exit(str(ask("c.a.example", 80)))')
nsbox_run(*listed, "--net-log", "../log", code='sys.exit(str(ask("b.example", 80)))')
nsbox_run(*listed, code='sys.exit(str(ask("b.example", 80)))', terminal=True)
nsbox_run(*listed, "--quiet", code='sys.exit(str(ask("b.example", 80)))')
"""
    found = client(RUN + code)
    unlisted = "nsbox: b.example isn't in --allow-net (a.example:80, down.example:80); "
    unlisted += "add --allow-net b.example:443, or with another port than 443|"
    assert found == [
        f"1  -2|{unlisted}",
        "1  ECONNREFUSED|nsbox: a.example:5432: only :80 is listed; add --allow-net a.example:5432|",
        "1  -2|nsbox: c.a.example is denied by '!c.a.example' in --allow-net, which wins over what allows it|",
        f"1  -2|{unlisted}",
        f"1 -2|{unlisted}",
        "1  -2|",
    ]


def test_nothing_to_say(client: Client) -> None:
    """Nothing is said of a command that works, that fails by itself, or whose server is down: it was told the truth."""
    code = """
listed = ("--allow-net", "a.example:80", "--allow-net", "down.example:80")
nsbox_run(*listed, code='print(ask("a.example", 80))')
nsbox_run(*listed, code='print(ask("b.example", 80))')
nsbox_run(*listed, code='sys.exit(str(ask("a.example", 80)))')
nsbox_run(*listed, code='sys.exit(str(ask("down.example", 80)))')
nsbox_run(code='sys.exit(str(ask("a.example", 80)))')
"""
    found = client(RUN + code)
    assert found[:4] == ["0 203.0.113.1 hi ", "0 -2 ", "1  203.0.113.1 hi|", "1  ECONNREFUSED|"]
    assert found[4] == "1  ENETUNREACH|"
