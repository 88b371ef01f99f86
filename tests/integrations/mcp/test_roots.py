"""A client's roots: they narrow what the operator allows, and never widen it unless the operator says so."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from nsbox_mcp_clients import Serve, legacy, modern

import nsbox
from nsbox._mcp.roots import directories, directory_of, narrowed

# The SDK says of a client's methods for roots and levels that newer versions of the protocol have none.
pytestmark = pytest.mark.filterwarnings("ignore::mcp.shared.exceptions.MCPDeprecationWarning")


def listing(roots: Sequence[Path | str]) -> dict[str, Any]:
    """A client with these roots."""

    async def list_roots(context: Any) -> types.ListRootsResult:
        uris = [root if isinstance(root, str) else root.as_uri() for root in roots]
        return types.ListRootsResult(roots=[types.Root(uri=uri) for uri in uris])

    return {"list_roots_callback": list_roots}


def test_uris(tmp_path: Path) -> None:
    """File URIs of directories of this machine, without links; all others are named with what is wrong."""
    odd = tmp_path / "a b%ü"
    odd.mkdir()
    (tmp_path / "link").symlink_to(odd)
    (tmp_path / "file").touch()
    assert directory_of(odd.as_uri()) == directory_of((tmp_path / "link").as_uri()) == str(odd)
    assert directory_of(f"file://localhost{tmp_path}/link/../link") == str(odd)
    bad = ["http://x/y", f"file://elsewhere{tmp_path}", "file:relative", (tmp_path / "file").as_uri(), "file:///a%00b"]
    bad += ["file:///nothing/there", "", "C:\\x"]
    found, problems = directories([*bad, odd.as_uri(), odd.as_uri()])
    assert found == [str(odd)] and len(problems) == len(bad)
    assert problems[1].endswith("is ignored: it is on another machine")


def test_a_planted_link(tmp_path: Path) -> None:
    """A root that a command has replaced by a link out of its workspace isn't the next workspace: --client-roots allow.

    Control: the same link, made where no command can write.
    """
    for name in ("project/sub", "home"):
        (tmp_path / name).mkdir(parents=True)
    project, sub, home = tmp_path / "project", tmp_path / "project/sub", tmp_path / "home"
    nsbox.run("rmdir sub; ln -s ../home sub", shell=True, policy=nsbox.Policy.workspace(project), check=True)
    found, problems = directories([sub.as_uri()])  # this process remembers where commands could write
    assert found == [] and len(problems) == 1 and "commands can write" in problems[0]
    (tmp_path / "other").mkdir()
    link = tmp_path / "other/link"
    link.symlink_to(home)
    assert directories([link.as_uri()]) == ([str(home)], [])
    for roots, writable in (
        ([tmp_path / "other"], []),
        ([], [str(tmp_path / "other")]),
    ):  # the same from a server's start
        found, problems = directories([root.as_uri() for root in [*roots, link]], writable)
        assert found == [str(root) for root in roots] and len(problems) == 1


def test_narrowed(tmp_path: Path) -> None:
    """What is in both: a root within the policy, a policy's directory within a root; nothing else, and no rights."""
    for name in ("ws/sub/deep", "ws/.git", "ws/lib", "more", "lib", "other"):
        (tmp_path / name).mkdir(parents=True)
    ws, more, lib = (str(tmp_path / name) for name in ("ws", "more", "lib"))
    rule = nsbox.PathRule("code", ws, (".py",))
    reads = [lib, f"{ws}/lib"]
    policy = nsbox.Policy.workspace(ws, write=[more], read=reads, deny=[f"{ws}/sub/deep"], paths=[rule])

    def left(*roots: str) -> tuple[tuple[str, ...], str | None, list[str]]:
        made, outside = narrowed(policy, [str(tmp_path / root) for root in roots])
        assert set(policy.deny) <= set(made.deny) and made.read == policy.read
        return tuple(os.path.relpath(path, tmp_path) for path in made.write), made.workdir, outside

    assert left("ws/sub") == (("ws/sub",), f"{ws}/sub", [])
    rules = {rule.root: rule.suffixes for rule in narrowed(policy, [f"{ws}/sub"])[0].paths}
    assert rules[f"{ws}/sub"] == (".py",)  # its rules hold there too
    assert left("ws") == (("ws",), ws, [])
    assert left("") == (("ws", "more"), ws, [])  # the root is above both
    assert left("more", "ws/sub") == (("more", "ws/sub"), more, [])
    assert left("other", "ws") == (("ws",), ws, [str(tmp_path / "other")])
    assert left("lib") == ((), lib, [])  # it stays read-only
    assert left("ws/lib") == ((), f"{ws}/lib", [])
    for root in ("other", "ws/sub/deep"):
        with pytest.raises(nsbox.PolicyError, match="the policy allows none of the client's roots"):
            left(root)
    host = nsbox.Policy.host()
    assert narrowed(host, [ws])[0] == host.with_(workdir=ws)


def test_a_root_in_the_workspace(connect: Any, serve: Serve, workspace: Path) -> None:
    """Commands start there, and can't write elsewhere; so do the file tools."""
    (workspace / "sub").mkdir()

    async def main() -> None:
        async with connect(serve(), **listing([workspace / "sub"])) as client:
            done = await client.call_tool("shell", {"command": "pwd; echo x > here; echo x > ../there"})
            assert done.structured_content["stdout"] == f"{workspace}/sub\n"
            assert done.structured_content["status"] != 0
            assert (await client.call_tool("write", {"path": "../there", "content": ""})).is_error
            assert (await client.call_tool("python", {"code": "import os\nos.getcwd()"})).structured_content[
                "value"
            ] == (f"{workspace}/sub")

    asyncio.run(main())
    assert [path.name for path in (workspace / "sub").iterdir()] == ["here"]
    assert [path.name for path in workspace.iterdir()] == ["sub"]


def test_a_client_that_wants_more(connect: Any, serve: Serve, workspace: Path, tmp_path: Path) -> None:
    """The attack: roots outside of the policy, one of them by a link. The control: with the operator's word it works."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("private\n")
    (workspace / "link").symlink_to(secret)
    roots = [secret, workspace / "link", "file:///"]

    async def outcomes(*options: str, wanted: Sequence[Any] = roots) -> list[Any]:
        async with connect(serve(*options), **listing(wanted)) as client:
            lines = [f"cat {secret}/key", f"echo x > {secret}/new", "cat link/key"]
            return [(await client.call_tool("shell", {"command": line})) for line in lines]

    for refused in asyncio.run(outcomes(wanted=roots[:2])):
        assert refused.is_error and "the policy allows none of the client's roots" in refused.content[0].text
    for done in asyncio.run(outcomes()):  # "/" is above the workspace, which is what is left
        assert done.structured_content["status"] != 0 and "private" not in done.structured_content["stdout"]
    assert not (secret / "new").exists()
    done = asyncio.run(outcomes("--client-roots", "allow", wanted=[secret]))
    assert done[0].structured_content["stdout"] == "private\n" and (secret / "new").exists()


def test_a_root_that_becomes_a_link(serve: Serve, workspace: Path, tmp_path: Path) -> None:
    """A command replaces the root of later commands by a link to a secret: they don't follow it."""
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("private\n")
    (workspace / "sub").mkdir()
    names = [workspace, workspace / "sub"]

    async def main() -> None:
        current: list[Any] = [names[0]]

        async def list_roots(context: Any) -> types.ListRootsResult:
            return types.ListRootsResult(roots=[types.Root(uri=root.as_uri()) for root in current])

        async with legacy(serve(), list_roots_callback=list_roots) as client:
            await client.call_tool("shell", {"command": "true"})
            current[:] = [names[1]]
            await client.send_roots_list_changed()
            assert (await client.call_tool("shell", {"command": "pwd"})).structured_content["stdout"].endswith("/sub\n")
            (workspace / "sub").rmdir()
            (workspace / "sub").symlink_to(secret)
            done = await client.call_tool("shell", {"command": "cat key; cat sub/key; echo x > new"})
            text = str(done.content)
            assert "private" not in text and not (secret / "new").exists()
            await client.send_roots_list_changed()
            done = await client.call_tool("shell", {"command": "cat key"})
            assert done.is_error and "private" not in str(done.content)

    asyncio.run(main())


def test_allow(connect: Any, serve: Serve, workspace: Path, tmp_path: Path) -> None:
    """The roots are the workspace: the first is where commands start, all can be written to, and -w is not."""
    one, two = tmp_path / "one", tmp_path / "two"
    for path in (one, two):
        path.mkdir()

    async def main() -> None:
        async with connect(serve("--client-roots", "allow"), **listing([one, two])) as client:
            done = await client.call_tool("shell", {"command": f"pwd; touch a {two}/b; touch {workspace}/c"})
            assert done.structured_content["stdout"] == f"{one}\n"
        async with connect(serve("--client-roots", "allow")) as client:  # a client without roots
            assert (await client.call_tool("shell", {"command": "pwd"})).structured_content[
                "stdout"
            ] == f"{workspace}\n"

    asyncio.run(main())
    assert (one / "a").exists() and (two / "b").exists() and not (workspace / "c").exists()


def test_home(connect: Any, serve: Serve, workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client can't give a home as a root, first or later. The control: the operator has named it for writing."""
    home = tmp_path / "me"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("private\n")
    monkeypatch.setenv("HOME", str(home))

    async def outcome(roots: Sequence[Path], *options: str) -> Any:
        server = serve("--client-roots", "allow", *options)
        async with connect(server, **listing(roots)) as client:
            return await client.call_tool("shell", {"command": f"cat {home}/.ssh/id; echo evil >> {home}/.bashrc"})

    for roots in ([home], [workspace, home], [home.parent]):
        done = asyncio.run(outcome(roots))
        assert done.is_error and "home directory" in done.content[0].text and not (home / ".bashrc").exists()
    for roots in ([home], [workspace, home]):
        done = asyncio.run(outcome(roots, "--write", str(home)))
        assert done.structured_content["stdout"] == "private\n" and (home / ".bashrc").exists()
        (home / ".bashrc").unlink()


def test_allow_with_a_policy_file(connect: Any, serve: Serve, workspace: Path, tmp_path: Path) -> None:
    """A file without a workspace gets the first root as its own; one that names a workspace keeps it."""
    root = tmp_path / "root"
    root.mkdir()
    file = tmp_path / "nsbox.toml"

    async def main(text: str, *options: str) -> Any:
        file.write_text(text)
        server = serve("--policy", str(file), *options, "--client-roots", "allow", own_policy=True)
        async with connect(server, **listing([root])) as client:
            return (await client.call_tool("shell", {"command": "pwd; echo $A"})).structured_content["stdout"]

    assert asyncio.run(main('[env]\nA = "b"\n', "-w", str(workspace))) == f"{root}\nb\n"


def test_ignore(connect: Any, serve: Serve, workspace: Path, tmp_path: Path) -> None:
    """The client isn't even asked."""

    async def list_roots(context: Any) -> types.ListRootsResult:
        raise AssertionError("it was asked")

    async def main() -> None:
        async with connect(serve("--client-roots", "ignore"), list_roots_callback=list_roots) as client:
            assert (await client.call_tool("shell", {"command": "pwd"})).structured_content[
                "stdout"
            ] == f"{workspace}\n"

    asyncio.run(main())


def test_roots_that_change(serve: Serve, workspace: Path) -> None:
    """The next call has the new ones; a job goes on with what it had. An empty list narrows nothing."""
    for name in ("one", "two"):
        (workspace / name).mkdir()
    current = [workspace / "one"]

    async def list_roots(context: Any) -> types.ListRootsResult:
        return types.ListRootsResult(roots=[types.Root(uri=root.as_uri()) for root in current])

    async def main() -> None:
        async with legacy(serve(), list_roots_callback=list_roots) as client:

            async def pwd() -> str:
                done = await client.call_tool("shell", {"command": "pwd"})
                return str(done.structured_content["stdout"]).strip()

            assert await pwd() == str(workspace / "one")
            job = (await client.call_tool("background", {"command": "read x; pwd"})).structured_content["job"]
            current[:] = [workspace / "two"]
            assert await pwd() == str(workspace / "one")  # nobody has said so
            await client.send_roots_list_changed()
            assert await pwd() == str(workspace / "two")
            await client.call_tool("job_send", {"job": job, "text": "\n"})
            done = await client.call_tool("job_wait", {"job": job})
            assert done.structured_content["result"]["stdout"].strip() == str(workspace / "one")
            current.clear()
            await client.send_roots_list_changed()
            assert await pwd() == str(workspace)

    asyncio.run(main())


def test_roots_that_are_not_told(serve: Serve) -> None:
    """A client that has roots and doesn't tell them gets nothing, since it isn't known what they leave."""

    async def list_roots(context: Any) -> types.ErrorData:
        return types.ErrorData(code=-32603, message="out of order")

    async def main() -> None:
        async with legacy(serve(), list_roots_callback=list_roots) as client:
            done = await client.call_tool("shell", {"command": "pwd"})
            assert done.is_error and "doesn't list them: out of order" in done.content[0].text

    asyncio.run(main())


def test_warnings_about_roots(serve: Serve, workspace: Path, tmp_path: Path) -> None:
    """A root that is ignored is a log notification, unless the client wants only worse ones."""
    other = tmp_path / "other"
    other.mkdir()
    told: list[Any] = []

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        told.append((params.level, params.logger, params.data["message"]))

    async def main(level: str | None) -> None:
        told.clear()
        options = listing([workspace, other, "file://elsewhere/x"])
        async with legacy(serve(), logging_callback=on_log, **options) as client:
            if level is not None:
                await client.set_logging_level(level)  # type: ignore[arg-type]
            await client.call_tool("shell", {"command": "true"})
            await client.call_tool("shell", {"command": "true"})

    asyncio.run(main(None))
    assert [row[:2] for row in told] == [("warning", "nsbox")] * 2
    assert [row[2] for row in told] == [
        "the root file://elsewhere/x is ignored: it is on another machine",
        f"the root {other} is ignored: the policy doesn't allow it",
    ]
    asyncio.run(main("error"))
    assert told == []

    async def since_2026(level: str) -> int:
        """Return how many messages a client gets that names a level in each of its calls."""
        told.clear()
        options = listing([workspace, other]) | {"log_level": level}
        async with modern(serve(), logging_callback=on_log, **options) as client:
            await client.call_tool("shell", {"command": "true"})
        return len(told)

    assert [asyncio.run(since_2026(level)) for level in ("info", "error")] == [1, 0]
