"""nsbox's backend for Deep Agents: commands, files, errors, limits, cancellation; and an agent that uses all of it."""

from __future__ import annotations

import asyncio
import inspect
import os
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from deepagents import create_deep_agent
from deepagents.backends import CompositeBackend, LocalShellBackend
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

import nsbox
from nsbox.integrations.deepagents import SandboxBackend

SECRET = "the secret of the host"


class Model(GenericFakeChatModel):
    """A model that says what it was told to say."""

    def bind_tools(self, tools: Sequence[Any], **options: Any) -> Model:
        return self


def scripted(*calls: tuple[str, dict[str, Any]]) -> Model:
    turns = [
        AIMessage("", tool_calls=[{"name": name, "args": args, "id": f"call-{number}"}])
        for number, (name, args) in enumerate(calls)
    ]
    return Model(messages=iter([*turns, AIMessage("done")]))


def answers(outcome: dict[str, Any]) -> list[str]:
    return [message.content for message in outcome["messages"] if message.type == "tool"]


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    workspace = tmp_path / "repo"
    workspace.mkdir()
    (tmp_path / "secret").write_text(SECRET)
    return workspace


@pytest.fixture
def backend(workspace: Path) -> Iterator[SandboxBackend]:
    with SandboxBackend(nsbox.Policy.workspace(workspace, deny=[workspace / ".env"])) as backend:
        yield backend


@pytest.mark.smoke
@pytest.mark.parametrize("is_async", [False, True])
def test_agent(workspace: Path, is_async: bool) -> None:
    """An agent's tools all work in the workspace; the host's secret is reached by Deep Agents' own backend alone."""
    a, secret = f"{workspace}/src/a.py", f"{workspace.parent}/secret"
    calls = [
        ("write_file", {"file_path": a, "content": "x = 1\ny = 1\n"}),
        ("edit_file", {"file_path": a, "old_string": "x = 1", "new_string": "x = 2"}),
        ("read_file", {"file_path": a}),
        ("grep", {"pattern": "x = ", "path": str(workspace), "output_mode": "content"}),
        ("glob", {"pattern": "**/*.py", "path": str(workspace)}),
        ("ls", {"path": str(workspace)}),
        ("execute", {"command": "python3 src/a.py && echo fine; echo kept > $TMPDIR/kept"}),
        ("execute", {"command": f"cat $TMPDIR/kept {secret}"}),
        ("read_file", {"file_path": secret}),
    ]
    outcomes = []
    for backend in (
        SandboxBackend(nsbox.Policy.workspace(workspace)),
        LocalShellBackend(root_dir=workspace, inherit_env=True),
    ):
        agent = create_deep_agent(scripted(*calls), backend=backend)
        request: Any = {"messages": [("user", "go")]}
        outcomes.append(asyncio.run(agent.ainvoke(request)) if is_async else agent.invoke(request))
        if isinstance(backend, SandboxBackend):
            backend.close()
    contained, local = (answers(outcome) for outcome in outcomes)
    assert "x = 2" in contained[2] and "x = 2" in contained[3] and a in contained[4] and "src" in contained[5]
    assert "fine" in contained[6] and (workspace / "src/a.py").read_text() == "x = 2\ny = 1\n"
    assert "kept" in contained[7] and f"[sandbox] '{secret}' is outside of the sandbox" in contained[7]
    assert "file_not_found" in contained[8]  # /tmp is the session's own
    assert SECRET not in str(contained)
    assert SECRET in local[7]  # the control
    Path(tempfile.gettempdir(), "kept").unlink()


def test_long_results(workspace: Path, backend: SandboxBackend) -> None:
    """What is too long for the model lands in a file of the session, if the root of such files lies in /tmp."""
    composite = CompositeBackend(default=backend, routes={}, artifacts_root="/tmp/artifacts")
    agent = create_deep_agent(scripted(("execute", {"command": "seq 100000"})), backend=composite)
    (answer,) = answers(agent.invoke({"messages": [("user", "go")]}))
    assert "/tmp/artifacts/large_tool_results/call-0" in answer
    assert backend.download_files(["/tmp/artifacts/large_tool_results/call-0"])[0].content.count(b"\n") > 99_000


def test_policies(workspace: Path) -> None:
    """A Sandbox, a session and a task can be used instead of a policy, and are left open."""
    with nsbox.Sandbox(nsbox.Policy.workspace(workspace)) as box, box.session() as session, box.task() as task:
        for each in (box, session, task):
            with SandboxBackend(each) as backend:
                assert backend.execute("pwd").output == str(workspace)
                assert backend.write(f"{workspace}/f", "x").error is None
                assert backend.read(f"{workspace}/f").file_data["content"] == "x"
        assert box.shell("cat f").stdout == session.shell("cat f").stdout == task.shell("cat f").stdout == "x"
        backend = SandboxBackend(task)
        assert backend.write("/usr/made", "x").error is None and backend.execute("cat /usr/made").output == "x"
    assert not Path("/usr/made").exists()
    for wrong, error in (("x", TypeError), (None, TypeError)):
        with pytest.raises(error):
            SandboxBackend(wrong)
    with pytest.raises(ValueError, match="timeout"):
        SandboxBackend(nsbox.Policy.workspace(workspace), timeout=0)


def test_execute(backend: SandboxBackend) -> None:
    """Output, status, signals, what was cut, and a time limit are told as Deep Agents' own backends tell them."""
    result = backend.execute("echo out; echo err >&2; exit 3")
    assert (result.output, result.exit_code, result.truncated) == ("out\n[stderr] err", 3, False)
    assert backend.execute("kill -9 $$").exit_code == 137
    assert backend.execute("no-such-program").exit_code == 127
    late = backend.execute("sleep 1000 & sleep 1000", timeout=1)
    assert late.exit_code == 124 and "1 s" in late.output
    assert backend.execute("pgrep sleep").exit_code == 1
    assert backend.execute("echo there", timeout=0).output == "there"
    small = SandboxBackend(backend.box, max_output=1000, env={"GREETING": "hello"}, secrets={"TOKEN": "tok-3141592"})
    long = small.execute("seq 10000")
    assert long.truncated and len(long.output) < 2000
    assert (
        small.execute("echo $GREETING $TOKEN").output.startswith("hello ")
        and "3141592" not in small.execute("env").output
    )


def test_errors(workspace: Path, backend: SandboxBackend) -> None:
    """Each error is Deep Agents' word for it."""
    (workspace / "d").mkdir()
    (workspace / ".env").write_text("KEY=1")
    (workspace / "link").symlink_to("/etc/passwd")
    found = backend.download_files(
        [f"{workspace}/none", f"{workspace}/d", f"{workspace}/.env", "relative", f"{workspace}/link", "/etc/shadow"]
    )
    assert [one.error for one in found] == [
        *("file_not_found", "is_directory", "permission_denied", "invalid_path"),
        *("permission_denied", "permission_denied"),
    ]
    (workspace / "file").write_text("x")
    names = ("d", ".env", "link", "file/below")
    sent = backend.upload_files([*((f"{workspace}/{name}", b"x") for name in names), ("rel", b""), ("/usr/x", b"")])
    assert [one.error for one in sent] == [
        *("is_directory", "permission_denied", "permission_denied", "invalid_path"),
        *("invalid_path", "permission_denied"),
    ]
    assert backend.read(f"{workspace}/none").error == f"File '{workspace}/none': file_not_found"
    assert "permission_denied: " in backend.read(f"{workspace}/.env").error
    assert "is_directory" in backend.read(f"{workspace}/d").error
    assert "permission_denied" in backend.write("/etc/x", "x").error
    assert backend.edit(f"{workspace}/none", "a", "b").error == f"Error: File '{workspace}/none' not found"
    assert "Permission denied" in backend.edit(f"{workspace}/.env", "KEY", "b").error
    assert "String not found" in backend.edit(f"{workspace}/file", "a", "b").error
    assert "old_string cannot be empty" in backend.edit(f"{workspace}/file", "", "b").error
    assert "not found" in backend.delete(f"{workspace}/none").error
    assert "permission_denied" in backend.delete("/etc/passwd").error
    assert "file_not_found" in backend.grep("x", f"{workspace}/none").error
    assert backend.glob("../*", str(workspace)).error
    assert "permission_denied" in backend.grep("KEY", f"{workspace}/.env").error
    assert (workspace / ".env").read_text() == "KEY=1"


def test_system_files(backend: SandboxBackend) -> None:
    """What commands can read beside the workspace, the reading tools can read too, and they can't write it."""
    assert "root" in backend.read("/etc/passwd").file_data["content"]
    assert backend.grep("root:", "/etc/passwd").matches
    assert any(entry["path"] == "/usr/bin" for entry in backend.ls("/usr").entries)
    assert "permission_denied" in backend.edit("/etc/passwd", "root", "toor").error.replace(
        "Permission denied", "permission_denied"
    )


def test_read_pages(workspace: Path, backend: SandboxBackend) -> None:
    """Pages of lines, line ends, binary files and long lines, as the base class's script has them."""
    (workspace / "lines").write_bytes(b"".join(b"line %d\r\n" % number for number in range(1, 11)))
    page = backend.read(f"{workspace}/lines", 2, 3)
    assert page.file_data == {"content": "line 3\nline 4\nline 5", "encoding": "utf-8"}
    assert (page.start_line, page.end_line, page.next_offset, page.total_lines) == (3, 5, 5, 10)
    assert backend.read(f"{workspace}/lines", 8, 100).next_offset is None
    assert "exceeds file length (10 lines)" in backend.read(f"{workspace}/lines", 10).error
    assert backend.read(f"{workspace}/lines", -5, 1).start_line == 1
    assert backend.read(f"{workspace}/lines", 0, -1).no_lines_requested
    (workspace / "long").write_text("x" * 600_000 + "\nlast\n")
    cut = backend.read(f"{workspace}/long")
    assert cut.file_data["content"].startswith("x" * 500_000) and "truncated" in cut.file_data["content"]
    assert (cut.end_line, cut.next_offset) == (1, 1) and backend.read(f"{workspace}/long", 1).file_data[
        "content"
    ] == "last"
    (workspace / "big").write_text("line\n" * 1_000_000)
    far = backend.read(f"{workspace}/big", 999_990, 5)
    assert (far.start_line, far.total_lines, far.next_offset) == (999_991, None, 999_995)
    end = backend.read(f"{workspace}/big", 999_998)
    assert (end.end_line, end.total_lines, end.next_offset) == (1_000_000, 1_000_000, None)
    (workspace / "binary").write_bytes(b"\xff\xfe\x00")
    assert backend.read(f"{workspace}/binary").file_data == {"content": "//4A", "encoding": "base64"}
    os.mkfifo(workspace / "fifo")
    assert backend.read(f"{workspace}/fifo").error


@pytest.mark.parametrize("offset", [0, 3, 7])
@pytest.mark.parametrize(
    "text", ["a\nb\nc", "a\n\n\nd\n", "ä\r\nö\r\n" * 5, "\n", "x" * 700_000, ("y" * 200_000 + "\n") * 5]
)
def test_pages_are_those_of_the_base_class(workspace: Path, backend: SandboxBackend, text: str, offset: int) -> None:
    """A page is the same as the one that the base class's script returns."""
    (workspace / "file").write_bytes(text.encode())
    path = f"{workspace}/file"
    assert backend.read(path, offset, 4) == super(SandboxBackend, backend).read(path, offset, 4)


def test_edit_line_ends(workspace: Path, backend: SandboxBackend) -> None:
    """A text that read() shows is found, whatever the file's line ends; they stay."""
    path = workspace / "mixed"
    path.write_bytes(b"one\r\ntwo\r\nthree\nfour\n")
    assert backend.edit(str(path), "one\ntwo", "1\n2").occurrences == 1
    assert path.read_bytes() == b"1\r\n2\r\nthree\nfour\n"
    path.write_text("a a a")
    assert "multiple times" in backend.edit(str(path), "a", "b").error and path.read_text() == "a a a"
    assert backend.edit(str(path), "a", "b", replace_all=True).occurrences == 3 and path.read_text() == "b b b"


def test_grep(workspace: Path, backend: SandboxBackend) -> None:
    """The pattern is plain text; `glob` and `max_count` narrow the search, and what is missing is told."""
    for number in range(5):
        (workspace / f"f{number}.py").write_text("a.b\naxb\n")
    (workspace / "other.txt").write_text("a.b\n")
    everywhere = backend.grep("a.b", str(workspace))
    assert len(everywhere.matches) == 6 and not everywhere.truncated
    assert everywhere.matches[0] == {"path": f"{workspace}/f0.py", "line": 1, "text": "a.b"}
    assert len(backend.grep("a.b", str(workspace), "*.py").matches) == 5
    few = backend.grep("a.b", str(workspace), max_count=2)
    assert len(few.matches) == 2 and few.truncated
    assert "pattern" in backend.grep("a\nb", str(workspace)).error
    exact = backend.grep("a.b", str(workspace), max_count=6)
    assert len(exact.matches) == 6 and not exact.truncated
    assert len(backend.grep("a.b").matches) == 6 and len(backend.glob("*.py").matches) == 5


def test_delete(workspace: Path, backend: SandboxBackend) -> None:
    """A directory goes with all that is in it."""
    (workspace / "d/e").mkdir(parents=True)
    (workspace / "d/e/f").write_text("x")
    assert backend.delete(f"{workspace}/d").path == f"{workspace}/d" and not (workspace / "d").exists()


def test_coroutines(workspace: Path, backend: SandboxBackend) -> None:
    """Each method has its coroutine, which returns the same."""
    path = f"{workspace}/f"

    async def use() -> None:
        assert (await backend.awrite(path, "one\n")).path == path
        assert (await backend.aedit(path, "one", "two")).occurrences == 1
        assert (await backend.aread(path)) == backend.read(path)
        assert (await backend.agrep("two", str(workspace))).matches == backend.grep("two", str(workspace)).matches
        assert (await backend.aglob("f", str(workspace))).matches == backend.glob("f", str(workspace)).matches
        assert (await backend.als(str(workspace))).entries == backend.ls(str(workspace)).entries
        assert (await backend.aupload_files([(path, b"x")]))[0].error is None
        assert (await backend.adownload_files([path]))[0].content == b"x"
        assert (await backend.aexecute("cat f", timeout=5)).output == "x"
        assert (await backend.adelete(path)).path == path

    asyncio.run(use())


def test_all_methods_are_own() -> None:
    """No tool of the base class is left that would run by execute(), whose output is cut and has hints in it."""
    names = [name for name, _ in inspect.getmembers(SandboxBackend, inspect.isfunction) if not name.startswith("_")]
    own = {name for name in vars(SandboxBackend)}
    assert {name for name in names if name not in own} == {"execute_with_offload", "aexecute_with_offload"}


def test_cancel(backend: SandboxBackend) -> None:
    """A cancelled task's command is gone before the cancellation goes on."""

    async def use() -> None:
        task = asyncio.create_task(backend.aexecute("touch started; exec sleep 1000"))
        while (await backend.aexecute("test -e started")).exit_code:
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await backend.aexecute("pgrep sleep")).exit_code == 1

    asyncio.run(use())


def test_close(workspace: Path) -> None:
    """Nothing runs after the end, and calls say that it is closed."""
    backend = SandboxBackend(nsbox.Policy.workspace(workspace))
    backend.execute("sleep 1000 >/dev/null 2>&1 &")
    backend.close()
    backend.close()
    with pytest.raises(ValueError, match="closed"):
        backend.execute("true")


def test_unavailable(workspace: Path) -> None:
    """A machine that can't grant the policy says why in nsbox's own words."""
    policy = nsbox.Policy.workspace(workspace, backend="landlock")
    with pytest.raises(nsbox.UnavailableError):
        SandboxBackend(policy)


def test_swapped_links(workspace: Path, backend: SandboxBackend) -> None:
    """A command that swaps a directory for a link to the host's can't lead the file tools out."""
    outside = workspace.parent / "outside"
    outside.mkdir()
    (outside / "f").write_text(SECRET)
    (workspace / "d").mkdir()
    (workspace / "d/f").write_text("inside")
    swap = f"while :; do mv d e; ln -s {outside} d; rm d; mv e d; done >/dev/null 2>&1 &"
    backend.execute(swap)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        got = backend.read(f"{workspace}/d/f")
        assert SECRET not in str(got)
        backend.write(f"{workspace}/d/g", "x")
        assert SECRET not in str(backend.grep("s", f"{workspace}/d").matches)
    assert sorted(os.listdir(outside)) == ["f"]
