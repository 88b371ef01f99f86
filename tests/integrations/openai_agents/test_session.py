"""Sessions of nsbox's client for the OpenAI Agents SDK: commands, files, ports, archives, their end and their return."""

from __future__ import annotations

import asyncio
import io
import json
import os
import tempfile
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxPathGrant, errors
from agents.sandbox.entries import File
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from nsbox_processes import sleepers

import nsbox
from nsbox.integrations.openai_agents import NsboxSandboxClient, NsboxSandboxClientOptions

SECRET = "the secret of the host"


def inside(use: Callable[[Any], Awaitable[None]], client: Any = None, **options: Any) -> None:
    """Run a coroutine function with a session that is deleted afterwards."""

    async def run() -> None:
        chosen = client or NsboxSandboxClient()
        session = await chosen.create(**options)
        try:
            async with session:
                await use(session)
        finally:
            await chosen.delete(session)
        assert options.get("manifest") is not None or not Path(session.state.manifest.root).exists()

    asyncio.run(run())


def test_exec() -> None:
    """Bytes, statuses, signals, shells; a program that isn't there, and what was refused."""

    async def use(session: Any) -> None:
        result = await session.exec("printf 'a\\377b'; echo err >&2; exit 3")
        assert (result.stdout, result.stderr, result.exit_code) == (b"a\xffb", b"err\n", 3)
        assert (await session.exec("kill -9 $$")).exit_code == 137
        assert (await session.exec("echo", "a b", shell=False)).stdout == b"a b\n"
        assert (await session.exec("echo $0; pwd", shell=["/bin/bash", "-c"])).stdout.startswith(b"/bin/bash\n")
        missing = await session.exec("no-such-program", shell=False)
        assert missing.exit_code == 127 and b"no-such-program" in missing.stderr
        assert (await session.exec("pwd")).stdout.decode().strip() == session.state.manifest.root
        refused = await session.exec("cat /etc/shadow")
        assert b"/etc/shadow: Permission denied\n[sandbox] " in refused.stderr
        big = await session.exec("head -c 30000000 /dev/zero")
        assert len(big.stdout) == 30_000_000
        with pytest.raises(ValueError, match="one user"):
            await session.exec("true", user="nobody")

    inside(use)


def test_the_host_is_out_of_reach(tmp_path: Path) -> None:
    """A command finds no secret beside the workspace; the SDK's own local client shows it."""
    secret = tmp_path / "secret"
    secret.write_text(SECRET)
    found = []

    async def use(session: Any) -> None:
        found.append((await session.exec(f"cat {secret}")).stdout)
        with pytest.raises((errors.InvalidManifestPathError, errors.WorkspaceReadNotFoundError)):
            await session.read(secret)

    for client in (NsboxSandboxClient(), UnixLocalSandboxClient()):
        inside(use, client)
    assert found == [b"", SECRET.encode()]


def test_state_stays() -> None:
    """What a command writes anywhere is there for the next one, and never on the host."""

    async def use(session: Any) -> None:
        await session.exec("echo 1 > /tmp/nsbox-one; echo 2 > ~/two; echo 3 > /usr/nsbox-three; echo 4 > four")
        found = await session.exec("cat /tmp/nsbox-one ~/two /usr/nsbox-three four")
        assert found.stdout.split() == [b"1", b"2", b"3", b"4"]
        assert not Path("/tmp/nsbox-one").exists() and not Path("/usr/nsbox-three").exists()
        assert not Path(session.state.manifest.root, "four").exists()  # until it is committed

    inside(use)


def test_commit(tmp_path: Path) -> None:
    """A workspace of the host's gets the changes when the session is shut down, whatever still runs."""
    (tmp_path / "kept").write_text("1")

    async def use(session: Any) -> None:
        await session.exec("cat kept; echo 2 > new; rm kept; sleep 1000 >/dev/null 2>&1 &")
        assert (tmp_path / "kept").exists()

    inside(use, manifest=Manifest(root=str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["new"] and not sleepers()


def test_without_overlay(tmp_path: Path) -> None:
    """Without an overlay the workspace changes at once, and the system stays read-only."""

    async def use(session: Any) -> None:
        await session.exec("echo 2 > new; echo 3 > /tmp/kept")
        assert (tmp_path / "new").read_text() == "2\n"
        assert (await session.exec("cat /tmp/kept")).stdout == b"3\n"
        assert b"read-only" in (await session.exec("touch /usr/x")).stderr

    inside(use, NsboxSandboxClient(overlay=False), manifest=Manifest(root=str(tmp_path)))


def test_files() -> None:
    """Files are written, read, listed, moved and removed; each error is the SDK's."""

    async def use(session: Any) -> None:
        root = Path(session.state.manifest.root)
        await session.write(Path("d/a.bin"), io.BytesIO(b"\x00\xff" * 10))
        assert (await session.read(Path("d/a.bin"))).read() == b"\x00\xff" * 10
        assert (await session.read(root / "d/a.bin")).read(1) == b"\x00"
        assert await session.read_bounded(Path("d/a.bin"), max_bytes=3) == b"\x00\xff\x00"
        assert [Path(entry.path).name for entry in await session.ls("d") if not entry.path.endswith(".")] == ["a.bin"]
        await session.mkdir("e/f", parents=True)
        await session.mv("d/a.bin", "e/f/b.bin")
        await session.rm("d", recursive=True)
        assert (await session.exec("ls; ls e/f")).stdout == b"e\nb.bin\n"
        with pytest.raises(errors.WorkspaceReadNotFoundError):
            await session.read(Path("none"))
        with pytest.raises(errors.WorkspaceArchiveReadError):
            await session.read(Path("e"))
        with pytest.raises(errors.WorkspaceArchiveWriteError):
            await session.write(Path("e"), io.BytesIO(b"x"))
        with pytest.raises(errors.InvalidManifestPathError):
            await session.write(Path("../x"), io.BytesIO(b"x"))
        with pytest.raises(errors.ExecNonZeroError):
            await session.rm("none")
        with pytest.raises(ValueError, match="one user"):
            await session.read(Path("e/f/b.bin"), user="nobody")

    inside(use)


def test_links(tmp_path: Path) -> None:
    """A link that leads out of the workspace isn't followed by the file tools, which run outside."""
    (tmp_path / "secret").write_text(SECRET)

    async def use(session: Any) -> None:
        await session.exec(f"ln -s {tmp_path}/secret out; ln -s real in; echo x > real")
        with pytest.raises((errors.WorkspaceReadNotFoundError, errors.WorkspaceArchiveReadError)):
            await session.read(Path("out"))
        assert (await session.read(Path("in"))).read() == b"x\n"

    inside(use)


def test_manifest(tmp_path: Path) -> None:
    """Entries, variables and grants of the manifest hold; what nsbox hasn't is refused."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data/f").write_text("granted")
    manifest = Manifest(
        entries={"a/b.txt": File(content=b"text")},
        environment={"value": {"NAME": "value"}},
        extra_path_grants=(SandboxPathGrant(path=str(tmp_path / "data"), read_only=True),),
    )

    async def use(session: Any) -> None:
        found = await session.exec(f"cat a/b.txt; echo; echo $NAME; cat {tmp_path}/data/f")
        assert found.stdout.split() == [b"text", b"value", b"granted"]
        assert (await session.read(tmp_path / "data/f")).read() == b"granted"

    inside(use, manifest=manifest.model_copy(update={"root": str(tmp_path / "root")}))

    async def wrong() -> None:
        for each in (
            Manifest(users=[{"name": "someone"}]),
            Manifest(extra_path_grants=(SandboxPathGrant(path="/data", host_path=str(tmp_path)),)),
        ):
            with pytest.raises(ValueError, match="nsbox"):
                await NsboxSandboxClient().create(manifest=each)

    asyncio.run(wrong())


def test_time_limit() -> None:
    """At the limit everything that the command started is ended, and the SDK's error is raised."""

    async def use(session: Any) -> None:
        with pytest.raises(errors.ExecTimeoutError):
            await session.exec("sleep 1000 & sleep 1000", timeout=0.5)
        assert (await session.exec("pgrep sleep")).exit_code == 1

    inside(use)


def test_cancelled() -> None:
    """A cancelled call's command is gone before the cancellation goes on; the session works on."""

    async def use(session: Any) -> None:
        task = asyncio.create_task(session.exec("touch started; exec sleep 1000"))
        while not (await session.exec("test -e started")).ok():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await session.exec("pgrep sleep")).exit_code == 1

    inside(use)


def test_processes() -> None:
    """Commands that go on: their output in pieces, a terminal to type at, their end."""

    async def use(session: Any) -> None:
        assert session.supports_pty()
        done = await session.pty_exec_start("echo out; exit 3", yield_time_s=30)
        assert (done.process_id, done.output, done.exit_code) == (None, b"out\n", 3)
        asked = await session.pty_exec_start(
            "read -p 'Name? ' n; echo hello $n", shell=["bash", "-c"], tty=True, yield_time_s=0.3
        )
        while b"Name?" not in asked.output:
            asked = await session.pty_write_stdin(session_id=asked.process_id, chars="")
        answered = await session.pty_write_stdin(session_id=asked.process_id, chars="world\n", yield_time_s=30)
        assert answered.exit_code == 0 and b"hello world" in answered.output
        with pytest.raises(errors.PtySessionNotFoundError):
            await session.pty_write_stdin(session_id=asked.process_id, chars="")
        running = await session.pty_exec_start("echo started; sleep 1000", yield_time_s=0.3)
        assert running.exit_code is None
        with pytest.raises(RuntimeError, match="stdin"):
            await session.pty_write_stdin(session_id=running.process_id, chars="x")
        await session.pty_terminate_all()
        assert (await session.exec("pgrep sleep")).exit_code == 1
        cut = await session.pty_exec_start("seq 10000", yield_time_s=30, max_output_tokens=100)
        assert cut.original_token_count > 1000 and len(cut.output) < 2000

    inside(use)


def test_ports() -> None:
    """A server inside is reached through the port that resolve_exposed_port() names; others aren't configured."""

    async def use(session: Any) -> None:
        await session.write(Path("index.html"), io.BytesIO(b"served"))
        server = await session.pty_exec_start("python3 -m http.server --bind 127.0.0.1 8000", yield_time_s=0.3)
        ready = (
            "until python3 -c 'import socket; socket.create_connection((\"127.0.0.1\", 8000))' 2>/dev/null; do :; done"
        )
        await session.exec(ready)
        end = await session.resolve_exposed_port(8000)
        assert end == await session.resolve_exposed_port(8000)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        url = end.url_for("http") + "index.html"
        assert await asyncio.to_thread(lambda: opener.open(url, timeout=30).read()) == b"served"
        with pytest.raises(errors.ExposedPortUnavailableError):
            await session.resolve_exposed_port(9000)
        assert server.process_id

    inside(use, options=NsboxSandboxClientOptions(exposed_ports=(8000,)))


def test_resume(tmp_path: Path) -> None:
    """A state that went through JSON gives back the running session, or else the same workspace."""

    async def use() -> None:
        client = NsboxSandboxClient()
        session = await client.create(manifest=Manifest(entries={"f": File(content=b"1")}))
        await session.start()
        await session.exec("echo 2 > f; echo 3 > /tmp/here")
        payload = json.loads(json.dumps(client.serialize_session_state(session.state)))
        async with await client.resume(client.deserialize_session_state(payload)) as same:
            assert (await same.exec("cat f /tmp/here")).stdout == b"2\n3\n"
        assert not await session.running()
        other = NsboxSandboxClient()  # as in another process
        payload = json.loads(json.dumps(client.serialize_session_state(session.state)))
        again = await other.resume(other.deserialize_session_state(payload))
        async with again:
            assert (await again.exec("cat f; ls /tmp/here")).stdout == b"2\n"
        await other.delete(again)
        assert not Path(session.state.manifest.root).exists()
        with pytest.raises(TypeError, match="NsboxSandboxSessionState"):
            await client.resume((await UnixLocalSandboxClient().create(manifest=Manifest(root=str(tmp_path)))).state)

    asyncio.run(use())


def test_snapshots(tmp_path: Path) -> None:
    """A workspace that is gone comes back from its snapshot, with modes and links; /tmp doesn't."""

    async def use() -> None:
        client = NsboxSandboxClient()
        session = await client.create(snapshot=LocalSnapshotSpec(base_path=tmp_path))
        async with session:
            await session.exec("mkdir d; echo 1 > d/f; chmod 750 d/f; ln -s d/f link; ln d/f d/same; echo > '*?[x]'")
        payload = client.serialize_session_state(session.state)
        await client.delete(session)
        again = await client.resume(client.deserialize_session_state(payload))
        async with again:
            found = await again.exec("cat link; stat -c %a d/f; ls; ls d")
            assert found.stdout.decode().split("\n")[:2] == ["1", "750"] and b"*?[x]" in found.stdout
        await client.delete(again)

    asyncio.run(use())


def test_archives() -> None:
    """An archive that leads out of the workspace, or isn't one, is refused by the SDK's error."""
    import tarfile

    async def use(session: Any) -> None:
        for name in ("../outside", "/tmp/outside"):
            data = io.BytesIO()
            with tarfile.open(fileobj=data, mode="w") as archive:
                archive.addfile(tarfile.TarInfo(name))
            data.seek(0)
            with pytest.raises(errors.WorkspaceArchiveWriteError):
                await session.hydrate_workspace(data)
        with pytest.raises(errors.WorkspaceArchiveWriteError):
            await session.hydrate_workspace(io.BytesIO(b"no archive"))
        assert not (await session.exec("test -e /tmp/outside -o -e ../outside")).ok()

    inside(use)


def test_errors(tmp_path: Path) -> None:
    """Before the start and after the end, calls raise the SDK's error; a start that fails says why."""

    async def use() -> None:
        client = NsboxSandboxClient()
        session = await client.create()
        with pytest.raises(errors.ExecTransportError):
            await session.exec("true")
        async with session:
            assert await session.running()
        assert not await session.running()
        with pytest.raises(errors.ExecTransportError):
            await session.exec("true")
        await client.delete(session)
        unfit = NsboxSandboxClient(lambda root: nsbox.Policy.workspace(root, backend="landlock"))
        session = await unfit.create(manifest=Manifest(root=str(tmp_path)))
        with pytest.raises(errors.WorkspaceStartError, match="landlock") as caught:
            await session.start()
        assert isinstance(caught.value.cause, nsbox.UnavailableError)
        with pytest.raises(TypeError, match="expects an NsboxSandboxSession"):
            await client.delete(await UnixLocalSandboxClient().create(manifest=Manifest(root=str(tmp_path))))

    asyncio.run(use())
    with pytest.raises(TypeError, match="must be a function"):
        NsboxSandboxClient("repo")
    assert not [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("nsbox-session-")]
