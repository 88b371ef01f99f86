"""The shell that reads a line, and the hints for what programs say when they meet a sandbox."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import Limits, NetworkEvent, NetworkRecord, Policy, PolicyError, Sandbox
from nsbox._network.network import Network
from nsbox._tools import hints as tools_hints
from nsbox._tools.verdicts import Ending


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy) as box:
        yield box


@pytest.fixture
def plain(policy: Policy) -> Iterator[Sandbox]:
    """A sandbox without bash."""
    with Sandbox(policy.with_(deny=["/usr/bin/bash"])) as box:
        yield box


def hints(result: nsbox.ToolResult) -> dict[str, str]:
    return {hint.kind: hint.message for hint in result.why}


def said(box: Sandbox, message: str, status: int = 1, **options: object) -> dict[str, str]:
    """Return the hints for a command that prints a message and fails."""
    return hints(box.shell(f"cat >&2; exit {status}", input=message + "\n", **options))  # type: ignore[arg-type]


# ---- which shell

LINES = {
    "[[ a == a* ]] && echo ok": "[[ ]]",
    "set -o pipefail; false | true || echo ok": "pipefail",
    "diff <(echo a) <(echo a) && echo ok": "<(...)",
    "a=(no ok); echo ${a[1]}": "arrays",
    "cat <<< ok": "<<<",
    "for i in {3..3}; do [ $i = 3 ] && echo ok; done": "{a..b}",
    "echo -e 'ok'": "echo -e",
    "ls /no-such-file &> /dev/null || echo ok": "&>",
    "x=no; echo ${x/no/ok}": "${x//a/b}",
    "x=OK; echo ${x,,}": "${x^^}",
    "x=nook; echo ${x:2}": "${x:1}",
    "y=ok; x=y; echo ${!x}": "${!x}",
    "((1 + 1 == 2)) && echo ok": "((...))",
    "source /dev/null; echo ok": "bash's commands",
    "printf '%s\\n' $'ok'": "$'...'",
    "mkdir -p d/{a,b}; [ -d d/b ] && echo ok": "{a,b}",
}


@pytest.mark.parametrize("line", LINES)
def test_bash(box: Sandbox, line: str) -> None:
    """A line as people and models write it."""
    result = box.shell(line)
    assert (result.stdout, result.returncode, result.why) == ("ok\n", 0, ())
    assert result.shell == result.as_dict()["shell"] == "/bin/bash"


@pytest.mark.parametrize("line", LINES)
def test_not_bash(plain: Sandbox, line: str) -> None:
    """Without bash sh reads the line; what only bash understands is named, also where nothing fails."""
    result = plain.shell(line)
    assert result.shell == "/bin/sh"
    assert f"{LINES[line]!r} is bash's" in hints(result)["not-bash"]
    assert "missing-program" not in hints(result)


@pytest.mark.parametrize(
    "line",
    [
        "awk '{print $1, $2}' /etc/hosts",
        "echo ${HOME:-x} ${HOME#/}",
        "grep -E '[0-9]{1,3}' /etc/hosts; true",
        "[ a = a ] && echo $((1 + 1)) 2>&1",
    ],
)
def test_what_is_everybodys(plain: Sandbox, line: str) -> None:
    """A line for any shell has no hint."""
    assert plain.shell(line).why == ()


def test_the_wish(policy: Policy, workspace: Path) -> None:
    """The call's shell, then the policy's; exec() has none."""
    own = workspace / "own"
    own.write_text('#!/bin/sh\necho "own: $2"\n')
    own.chmod(0o755)
    with Sandbox(policy.with_(shell_path="/bin/sh")) as box:
        assert box.shell("echo x").shell == "/bin/sh"
        result = box.shell("echo x", shell_path=own)
        assert (result.shell, result.stdout) == (str(own), "own: echo x\n")
        assert box.exec("true").shell is None
        with box.session() as session:
            assert session.shell("echo ${BASH_VERSION:-none}").stdout == "none\n"
            assert session.shell("echo ${BASH_VERSION:+bash}", shell_path="/bin/bash", keep=True).stdout == "bash\n"


def test_a_kept_bash(box: Sandbox) -> None:
    """What is exported from bash is there for the next line."""
    with box.session() as session:
        assert session.shell("cd /tmp; a=(x y); export B=${a[1]}; exit 3", keep=True).returncode == 3
        result = session.shell("echo $B $PWD", keep=True)
        assert (result.stdout, result.shell, result.args) == ("y /tmp\n", "/bin/bash", "echo $B $PWD")


def test_wrong_shells(box: Sandbox, policy: Policy, workspace: Path) -> None:
    """One that isn't there is a status and a hint; a path that is none, an error."""
    result = box.shell("echo x", shell_path="/no/fish")
    assert (result.returncode, result.shell) == (127, None)
    assert hints(result)["missing-program"] == "the sandbox has no shell: /no/fish; shell_path names another"
    (workspace / "text").write_text("x")
    assert box.shell("echo x", shell_path=workspace / "text").returncode == 126
    for wrong in ("bash", "", "/a/../b", "a\0b"):
        with pytest.raises(PolicyError, match="shell_path"):
            box.shell("echo x", shell_path=wrong)
        with pytest.raises(PolicyError, match="shell_path"):
            policy.with_(shell_path=wrong)


def test_a_directory_that_has_gone(box: Sandbox, workspace: Path) -> None:
    """The directory is named, and no other shell is tried for it."""
    with pytest.raises(nsbox.AccessError, match="is no directory in the sandbox"):
        box.shell("pwd", cwd="missing")


def test_no_bash_at_all(workspace: Path) -> None:
    """A root with sh alone, made of layers."""
    libs = [nsbox.RoBind(path, path) for path in ("/lib", "/lib64", "/usr/lib", "/usr/lib64") if os.path.isdir(path)]
    ops = [nsbox.RoBind(os.path.realpath("/bin/sh"), "/bin/sh"), *libs, nsbox.Proc("/proc")]
    with Sandbox(Policy.layers(*ops)) as box:
        result = box.shell("echo ${BASH_VERSION:-none}", cwd="/")
        assert (result.stdout, result.shell) == ("none\n", "/bin/sh")


# ---- hints


@pytest.fixture
def linked(workspace: Path, tmp_path: Path) -> Iterator[tuple[Sandbox, Path, Path]]:
    """A sandbox, a directory that it shows, in which links are as in /usr, and another one to which they lead."""
    shown, elsewhere = tmp_path / "shown", tmp_path / "elsewhere"
    (elsewhere / "bin").mkdir(parents=True)
    (elsewhere / "data").write_text("x\n")
    program = elsewhere / "bin/their-tool"
    program.write_text("#!/bin/sh\necho ok\n")
    program.chmod(0o755)
    shown.mkdir()
    for name, target in {"data": "data", "all": "", "their-tool": "bin/their-tool", "gone": "no/such"}.items():
        (shown / name).symlink_to(elsewhere / target)
    with Sandbox(Policy.workspace(workspace, read=[shown])) as box:
        yield box, shown, elsewhere


def test_links_that_lead_out(linked: tuple[Sandbox, Path, Path]) -> None:
    """A link in what the sandbox shows, to what it doesn't: where it leads, and what to add; which then helps."""
    box, shown, elsewhere = linked
    cases = {
        f"cat {shown}/data": ("is a link to", elsewhere / "data"),
        f"cat {shown}/all/data": (f"leads by the link {shown}/all to", elsewhere),
        f"{shown}/their-tool": ("is a link to", elsewhere / "bin/their-tool"),
        f"python3 -c \"open('{shown}/data')\"": ("is a link to", elsewhere / "data"),
    }
    for line, (how, target) in cases.items():
        assert f"{how} {target}, which isn't in the sandbox: add read=['{target}']" in hints(box.shell(line))["outside"]
        with Sandbox(box.policy.with_(read=[*box.policy.read, target])) as wider:
            assert wider.shell(line).why == ()
    assert "isn't there outside of the sandbox either" in hints(box.shell(f"cat {shown}/gone"))["outside"]
    assert f"is a link to {elsewhere}/data" in hints(box.exec("cat", [f"{shown}/data"]))["outside"]


def test_dots_through_what_is_missing(linked: tuple[Sandbox, Path, Path]) -> None:
    """A ".." after a directory that the sandbox lacks: the hint names that directory, and the path that helps."""
    box, shown, elsewhere = linked
    (shown / "own").write_text("x\n")
    message = hints(box.shell(f"cat {elsewhere}/../shown/own"))["outside"]
    assert f"leads through '{elsewhere}', which isn't in the sandbox; '{shown}/own' is: name that" in message
    assert box.shell(f"cat {shown}/own").returncode == 0
    assert "is outside of the sandbox" in hints(box.shell(f"cat {elsewhere}/bin/../data"))["outside"]


def test_a_program_behind_a_link(linked: tuple[Sandbox, Path, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same for a program that is looked for in PATH, and for what isn't a tool's: the exception says it."""
    box, shown, elsewhere = linked
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}:{shown}")
    for result in (box.shell("their-tool"), box.exec("their-tool")):
        message = hints(result)["missing-program"]
        assert f"{shown}/their-tool, which is a link to {elsewhere}/bin/their-tool, which isn't" in message
        assert f"add read=['{elsewhere}/bin']" in message
    with pytest.raises(FileNotFoundError) as caught:
        nsbox.run([f"{shown}/their-tool"], policy=box.policy)
    assert f"is a link to {elsewhere}/bin/their-tool, which isn't in the sandbox" in caught.value.__notes__[0]


@pytest.mark.skipif(os.geteuid() != 0, reason="a link in /usr is for root to make")
def test_links_in_usr(box: Sandbox, linked: tuple[Sandbox, Path, Path]) -> None:
    """A link in /usr, as packages have them to what they keep in /var/lib."""
    target = linked[2] / "data"
    link = Path(f"/usr/share/nsbox-test-{os.getpid()}")
    link.symlink_to(target)
    try:
        message = hints(box.shell(f"cat {link}"))["outside"]
    finally:
        link.unlink()
    assert message.startswith(f"'{link}' is a link to {target}, which isn't in the sandbox: add read=['{target}']")


def test_a_link_that_a_command_has_made(linked: tuple[Sandbox, Path, Path], workspace: Path) -> None:
    """It gives no advice what else to show, and doesn't tell what there is outside. Control: one that is shown does."""
    box, shown, elsewhere = linked
    for target in (elsewhere, elsewhere / "no"):
        message = hints(box.shell(f"ln -sfn {target} l; cat l/data"))["outside"]
        assert "add read" not in message and "isn't there" not in message
    box.shell(f"ln -s {shown}/all m")
    assert "add read" not in hints(box.shell("cat m/data"))["outside"]
    assert "add read" in hints(box.shell(f"cat {shown}/all/data"))["outside"]


def test_a_link_to_all(linked: tuple[Sandbox, Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link to what contains the caller's home is named, but not to be shown as a whole."""
    box, shown, _ = linked
    monkeypatch.setenv("HOME", str(tmp_path / "h/user"))
    (tmp_path / "h/user").mkdir(parents=True)
    (shown / "homes").symlink_to(tmp_path / "h")
    message = hints(box.shell(f"ls {shown}/homes/"))["outside"]
    assert f"is a link to {tmp_path}/h, which isn't in the sandbox;" in message and "add read" not in message


@pytest.mark.parametrize("where", [".cargo/bin", ".local/bin", "tools"])
def test_a_program_that_is_outside(box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """In the caller's PATH, or where installers put them: where it is, and what to add."""
    directory = tmp_path / where
    directory.mkdir(parents=True)
    program = directory / "their-tool"
    program.write_text("#!/bin/sh\necho ok\n")
    program.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    if where == "tools":
        monkeypatch.setenv("PATH", f"{directory}:{os.environ['PATH']}")
    for result in (box.shell("their-tool x"), box.exec("their-tool")):
        message = hints(result)["missing-program"]
        assert f"'their-tool' is at {program} outside" in message
        assert f"add read=['{directory}'" in message
    assert "rustup" in message if where == ".cargo/bin" else "rustup" not in message
    with Sandbox(box.policy.with_(read=[directory])) as other:
        assert other.shell(str(program)).stdout == "ok\n"  # what the hint says is true
        result = other.shell("their-tool")
        if where == "tools":  # the caller's PATH is the sandbox's, as far as it is there
            assert result.stdout == "ok\n"
        else:
            assert f"{program} in the sandbox, which isn't in PATH" in hints(result)["missing-program"]
    with Sandbox(box.policy.with_(tools_bin=directory)) as other:
        assert other.shell("their-tool").stdout == "ok\n"


def test_names_that_are_no_programs(box: Sandbox) -> None:
    """What a command says it hasn't found isn't taken for a path."""
    for name in ("../../etc/passwd", "/etc/passwd", "a'b", "x" * 300):
        assert " outside" not in said(box, f"{name}: not found", 127).get("missing-program", "")


SAYINGS = [
    ("No usable sandbox! Update your kernel", "not-permitted", "nested=True"),
    (
        "bwrap: No permissions to create new namespace, likely because the kernel does not allow",
        "not-permitted",
        "nested=True",
    ),
    (
        "Failed to move to new namespace: PID namespaces supported, but failed: errno = Operation not permitted",
        "not-permitted",
        "nested=True",
    ),
    ("unshare: unshare failed: Operation not permitted", "not-permitted", "nested=True"),
    ("error: externally-managed-environment", "installation", "python3 -m venv .venv"),
    ("OSError: [Errno 30] Read-only file system: '/usr/lib/python3/dist-packages/x'", "installation", "venv"),
    ("npm error EROFS: read-only file system, mkdir '/usr/lib/node_modules/x'", "installation", "npx"),
    ("ERROR:  You don't have write permissions for the /var/lib/gems/3.1.0 directory.", "installation", "gem"),
    ("E: Unable to acquire the dpkg frontend lock (/var/lib/dpkg/lock-frontend), are you root?", "privileges", "root"),
    ('sudo: The "no new privileges" flag is set', "privileges", "root"),
    ("Error: This command has to be run with superuser privileges", "privileges", "root"),
    ("sh: 3: Cannot fork", "limit", "limits.processes=100"),
    ("OpenBLAS: pthread_create failed for thread 1 of 4", "limit", "limits.processes=100"),
    ("E: Failed: Temporary failure resolving 'packages.example'", "network", "network='none'"),
    ("dial tcp: lookup modules.example: no such host", "network", "network='none'"),
    ("mv: cannot move 'a' to '/tmp/b': Invalid cross-device link", "other-file-system", "/tmp"),
    ("OSError: [Errno 16] Device or resource busy: '/tmp'", "mounted", "only what is in it: /tmp"),
    ("Error: EBUSY: resource busy or locked, unlink '/tmp/x'", "mounted", "mounted"),
    (
        "[2:2:1126/1:ERROR:zygote_host_impl_linux.cc:103] Running as root without --no-sandbox is not supported.",
        "privileges",
        "--no-sandbox",
    ),
    ("warning: Could not trace the inferior process.", "not-permitted", "gdb -p PID"),
    ("strace: attach: ptrace(PTRACE_SEIZE, 7): Operation not permitted", "not-permitted", "allow=['ptrace']"),
]


@pytest.mark.parametrize(("message", "kind", "part"), SAYINGS)
def test_sayings(policy: Policy, message: str, kind: str, part: str) -> None:
    """What a program prints, and what helps. If the line succeeds at last, refusals and limits are told."""
    with Sandbox(policy.with_(limits=Limits(processes=100))) as box:
        assert part in said(box, message).get(kind, "")
        assert said(box, message, status=0).keys() <= {"read-only", "outside", "network", "limit"}


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("cat .env; ls", "outside"),
        ("cat .env || true", "outside"),
        ("touch /usr/x; echo on", "read-only"),
        ("cat .env | wc -c", "outside"),
        ("echo 'curl: (6) Could not resolve host: api.example' >&2; true", "network"),
        ("cat missing; true", None),
        ("chmod 0 own; cat own; true", None),
        ("cat .env 2>/dev/null; true", None),
        ("echo 'touch: /usr/x: Read-only file system'", None),
    ],
)
def test_refusals_in_a_line_that_succeeds(policy: Policy, line: str, kind: str | None) -> None:
    """A line's status is its last command's; what stderr says was refused before is told. The control: a program."""
    workspace = Path(policy.write[0])
    for name in (".env", "own"):
        (workspace / name).touch()
    with Sandbox(policy.with_(deny=[workspace / ".env"])) as box:
        done = box.shell(line)
        assert (done.returncode, [hint.kind for hint in done.why]) == (0, [kind] if kind else [])
        assert box.exec("sh", ["-c", line]).why == ()


def test_hidden_but_not_there(policy: Policy) -> None:
    """A path that the policy hides, and that isn't there, has no hint: a model would believe that there is one."""
    hidden = Path(policy.write[0]) / ".env"
    with Sandbox(policy.with_(deny=[hidden])) as box:
        assert box.shell("cat .env").why == ()
        hidden.touch()
    with Sandbox(policy.with_(deny=[hidden])) as box:
        assert [hint.kind for hint in box.shell("cat .env").why] == ["outside"]


@pytest.mark.parametrize(
    ("message", "is_told"),
    [
        ("curl: (7) Failed to connect to 1.1.1.1 port 80 after 0 ms: Couldn't connect to server", True),
        ("could not connect to server 10.0.0.5", False),
        ("Unable to connect to 10.0.0.5:5432", True),
        ("redis: Could not connect to 127.0.0.1:6379", False),
        ("failed to connect to localhost port 8080", False),
        ("failed to connect to unix:///run/docker.sock", False),
    ],
)
def test_addresses_without_a_network(policy: Policy, message: str, is_told: bool) -> None:
    """An address by its number needs a network as well, unless it is the sandbox's own."""
    told = reasons(policy, message)
    assert ("network" in told) == is_told, told


def test_what_is_mounted_by_its_relative_name(policy: Policy) -> None:
    """As programs print it, who have it from their command line."""
    workspace = Path(policy.write[0])
    (workspace / "hidden.py").touch()
    (workspace / "kept").mkdir()
    own = policy.with_(deny=[workspace / "hidden.py"], read=[*policy.read, workspace / "kept"])
    with Sandbox(own) as box:
        for command, name in (("rm -f hidden.py", "hidden.py"), ("rmdir ./kept", "kept")):
            found = box.shell(command)
            assert hints(found)["mounted"].endswith(f": {workspace}/{name}"), found


def test_nested(box: Sandbox) -> None:
    """Where sandboxes can be made, that isn't the reason."""
    with Sandbox(box.policy.with_(nested=True)) as other:
        assert said(other, "No usable sandbox!") == {}


def test_missing_root(box: Sandbox) -> None:
    """What would become root isn't looked for."""
    for name in ("sudo", "doas"):
        assert list(said(box, f"bash: line 1: {name}: command not found", 127)) == ["privileges"]


@pytest.mark.parametrize("line", ["git clone https://example.com/x; sleep 60", "npm install; sleep 60"])
def test_the_network_behind_a_time_limit(box: Sandbox, policy: Policy, line: str) -> None:
    """A program that tries again and again says nothing of the network before it is killed."""
    line = f"git() {{ :; }}; npm() {{ :; }}; {line}"
    assert {"timeout", "network"} == hints(box.shell(line, timeout=0.2)).keys()
    assert {"timeout"} == hints(box.shell("sleep 60", timeout=0.2)).keys()
    with Sandbox(policy.with_(network="host")) as other:
        assert {"timeout"} == hints(other.shell(line, timeout=0.2)).keys()


def test_the_callers_home(box: Sandbox, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A path below it, in a message that has no errno."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for path in (".m2/settings.xml", ".config/tool"):
        message = said(box, f"Error reading configuration from {tmp_path}/home/{path}.")["outside"]
        assert f"'{tmp_path}/home/{path}' lies in your home directory" in message
    assert said(box, f"Error reading {tmp_path}/other") == {}


def test_long_lines_and_outputs(plain: Sandbox) -> None:
    """Nothing that a command is, or prints, makes the search take long."""
    began = time.process_time()
    for word in (
        "set ",
        "\n",
        "{a,",
        "ptrace(",
        "unshare(",
        "site-packages Errno 13 ",
        "/var/lib/dpkg/",
        "((",
        "pip a b ",
        "read -r ",
    ):
        plain.shell("cat >&2; exit 1 #" + word * (50_000 // len(word)), input=word * (200_000 // len(word)))
    assert time.process_time() - began < 5


@needs.programs("bwrap")
def test_bwrap(box: Sandbox) -> None:
    """A real one."""
    command = "bwrap --unshare-all --ro-bind / / true"
    assert "nested=True" in hints(box.shell(command))["not-permitted"]
    with Sandbox(box.policy.with_(nested=True)) as other:
        assert other.shell(command).returncode == 0


# ---- network lists


NETWORK_WORDS = [
    *("curl: (6) Could not resolve host: evil.example", "Network is unreachable", "getaddrinfo EAI_AGAIN evil.example"),
    "curl: (7) Failed to connect to evil.example port 443: Connection refused",
]


def under_list(policy: Policy) -> Policy:
    """Return a copy with a network list, on which reasons() alone is asked."""
    listed = policy.with_()
    vars(listed)["network"] = Network(allow=("packages.example",))
    return listed


def reasons(policy: Policy, text: str, *events: NetworkEvent, status: int = 1, ending: Any = None) -> dict[str, str]:
    """Return the hints for what a command has printed, and what the relay has reported of it."""
    found = tools_hints.reasons(
        policy,
        status,
        "",
        text,
        cwd=None,
        usage=None,
        ending=ending,
        args="curl -s https://evil.example",
        network=NetworkRecord(events),
    )
    return {hint.kind: hint.message for hint in found}


REFUSED = NetworkEvent(1.0, 1, "dns", "evil.example", verdict="refused", reason="not-listed")


@pytest.mark.parametrize("message", [*NETWORK_WORDS, "", "something else"])
def test_network_events(policy: Policy, message: str) -> None:
    """Under a list, the hint says what was refused, from the relay's reports, whatever the command says of it."""
    found = reasons(under_list(policy), message, REFUSED)
    assert found["network"].startswith("evil.example isn't in network= (packages.example:443); add 'evil.example:443'")


NOTHING = "the network list refused nothing"


@pytest.mark.parametrize("message", [*NETWORK_WORDS, ""])
def test_network_is_not_guessed_under_a_list(policy: Policy, message: str) -> None:
    """Without a report the network isn't said to be off; at most what the relay can't see. Without a list, as before."""
    listed = under_list(policy)
    late = Ending(5, "SIGTERM", 2, False)
    assert reasons(listed, message).get("network", NOTHING).startswith(NOTHING)
    assert "off" not in reasons(listed, message, ending=late).get("network", "")
    said = reasons(policy, message, ending=late)["network"]
    assert "network='none'" in said and "the caller can allow hosts, such as network=['api.example:443']" in said


def test_the_own_127_0_0_1_under_a_list(policy: Policy) -> None:
    """A server of this machine needs an entry of its own, whatever the program calls it."""
    for target in ("localhost port 8000", "127.0.0.1:8000"):
        told = reasons(under_list(policy), f"curl: (7) Failed to connect to {target}: Couldn't connect to server")
        assert told["network"].endswith("network= needs 'localhost:PORT'")


def test_network_of_a_success(policy: Policy) -> None:
    """A command that succeeds has no hint for what it was refused on the way."""
    assert reasons(under_list(policy), "", REFUSED, status=0) == {}


def test_network_of_a_command_without_a_list(box: Sandbox) -> None:
    """Without a list there is an empty record, and no hint comes of it."""
    command = box.Popen(["true"])
    assert command.wait() == 0
    assert command.sandbox.network == NetworkRecord()
    assert box.shell("exit 3").why == ()


# ---- nsbox.hints()


def test_hints_of_a_popen(box: Sandbox) -> None:
    """For a command that Popen has started, hints() has what the record of shell() has."""
    line = "touch /usr/x"
    process = box.Popen(line, shell=True, stderr=nsbox.PIPE, text=True)
    _, printed = process.communicate()
    own = nsbox.hints(box.policy, process.returncode, "", printed, args=line, usage=process.sandbox.usage)
    assert own == box.shell(line).why
    assert [type(hint) for hint in own] == [nsbox.Hint]
    assert nsbox.hints(box.policy, 0, "", printed) == ()
    (hint,) = nsbox.hints(box.policy, 0, "", printed, args=f"{line}; true", shell="/bin/sh")
    assert hint.kind == "read-only"


def test_hints_of_a_time_limit(policy: Policy) -> None:
    """A caller who has killed a command says so; else the signal is somebody's."""
    assert [hint.kind for hint in nsbox.hints(policy, -9)] == ["killed"]
    (hint,) = nsbox.hints(policy, -9, timeout=5)
    assert (hint.kind, "5 seconds" in str(hint), "SIGKILL" in str(hint)) == ("timeout", True, True)


def test_hints_of_the_wrong_type(policy: Policy) -> None:
    """A policy or an output of another type is named."""
    with pytest.raises(TypeError, match="policy is a str"):
        nsbox.hints("policy", 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="stderr is a bytes"):
        nsbox.hints(policy, 1, "", b"")  # type: ignore[arg-type]
