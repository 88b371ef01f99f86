"""What Inspect's own checks leave open: users, limits, permissions, and a sandbox that has ended."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import anyio
import pytest
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size, override_max_read_file_size

import nsbox
from nsbox.integrations.inspect_ai import NsboxConfig, NsboxSandboxEnvironment, configs, policy_of

pytestmark = pytest.mark.anyio

both = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])


@both
async def test_cancelled_command(sandbox_env: NsboxSandboxEnvironment) -> None:
    """A cancelled command has ended, with all that it started, when the cancellation goes on."""
    with anyio.move_on_after(1) as scope:
        await sandbox_env.exec(["sh", "-c", "setsid sleep 1000 & sleep 1000"], concurrency=False)
    assert scope.cancelled_caught
    assert sandbox_env.task.task.processes() == []


@both
async def test_background(sandbox_env: NsboxSandboxEnvironment) -> None:
    """What a command leaves running goes on; later commands see it."""
    command = "nohup sleep 1000 >/dev/null 2>&1 & echo $!"
    result = await sandbox_env.exec(
        ["sh", "-c", command], concurrency=False
    )  # Inspect's limiter is of one kind of loop
    assert (await sandbox_env.exec(["kill", result.stdout.strip()], concurrency=False)).success


async def test_environment(sandbox_env: NsboxSandboxEnvironment, monkeypatch: pytest.MonkeyPatch) -> None:
    """env adds to what the policy gives, PATH included; the caller's own variables aren't there."""
    monkeypatch.setenv("A_SECRET", "x")
    await sandbox_env.write_file("bin/hello", "#!/bin/sh\necho $HOME $NAME\n")
    await sandbox_env.exec(["chmod", "+x", "bin/hello"])
    where = (await sandbox_env.exec(["pwd"])).stdout.strip()
    result = await sandbox_env.exec(["hello"], env={"PATH": f"{where}/bin:/usr/bin:/bin", "NAME": "nobody"})
    assert result.stdout.startswith("/") and result.stdout.endswith(" nobody\n")
    assert "A_SECRET" not in (await sandbox_env.exec(["env"])).stdout


async def test_missing_program_and_directory(sandbox_env: NsboxSandboxEnvironment) -> None:
    """Both are results, as from a shell, not exceptions."""
    missing = await sandbox_env.exec(["no-such-program"])
    assert (missing.success, missing.returncode) == (False, 127)
    assert "no-such-program" in missing.stderr
    nowhere = await sandbox_env.exec(["true"], cwd="/no/such/directory")
    assert not nowhere.success and "/no/such/directory" in nowhere.stderr


async def test_late_command(sandbox_env: NsboxSandboxEnvironment) -> None:
    """The error of a time limit has what the command had printed."""
    with pytest.raises(TimeoutError, match="after 1 seconds") as late:
        await sandbox_env.exec(["sh", "-c", "echo begun; sleep 1000"], timeout=1)
    assert getattr(late.value, "truncated_output", "") == "begun\n"


async def test_limits(sandbox_env: NsboxSandboxEnvironment) -> None:
    """Output and files above the limits are errors; right at the limit they aren't."""
    with override_max_exec_output_size(2048):
        assert len((await sandbox_env.exec(["head", "-c", "2048", "/dev/zero"])).stdout) == 2048
        for stream in ("", " >&2"):
            with pytest.raises(OutputLimitExceededError, match="2 KiB") as error:
                await sandbox_env.exec(["sh", "-c", f"head -c 2049 /dev/zero{stream}"])
            assert error.value.truncated_output
    await sandbox_env.write_file("file", b"x" * 2049)
    with override_max_read_file_size(2049):
        assert len(await sandbox_env.read_file("file")) == 2049
    with override_max_read_file_size(2048), pytest.raises(OutputLimitExceededError):
        await sandbox_env.read_file("file", text=False)


async def test_text(sandbox_env: NsboxSandboxEnvironment) -> None:
    """Line ends are kept; what is no UTF-8 is an error of a text, and no error of bytes."""
    await sandbox_env.write_file("text", "a\r\nb\rc\n")
    assert await sandbox_env.read_file("text") == "a\r\nb\rc\n"
    await sandbox_env.write_file("binary", b"\xff")
    with pytest.raises(UnicodeDecodeError):
        await sandbox_env.read_file("binary")
    assert await sandbox_env.read_file("binary", text=False) == b"\xff"


async def test_no_way_to_the_host_by_a_link(sandbox_env: NsboxSandboxEnvironment, tmp_path: Path) -> None:
    """A link that a command makes leads the file tools to files of the sandbox, never to the host's."""
    secret = tmp_path / "secret"
    secret.write_text("of the host")
    await sandbox_env.exec(["ln", "-s", str(secret), "link"])
    with pytest.raises((FileNotFoundError, PermissionError)):
        await sandbox_env.read_file("link")
    with pytest.raises((FileNotFoundError, PermissionError)):
        await sandbox_env.write_file("link", "changed")
    assert secret.read_text() == "of the host"


@pytest.mark.as_root("only root's tasks have several users")
async def test_other_user(sandbox_env: NsboxSandboxEnvironment) -> None:
    """Root's sandbox runs commands as any user that it has, by name or number."""
    for user in ("nobody", "65534"):
        result = await sandbox_env.exec(["sh", "-c", "id -un; id -u; echo $HOME; touch /tmp/of-$(id -u)"], user=user)
        assert result.stdout.split() == ["nobody", "65534", "/nonexistent"], result
    assert (await sandbox_env.exec(["id", "-u"], user="root")).stdout == "0\n"
    assert (await sandbox_env.exec(["id", "-u"], user="54321")).stdout == "54321\n"
    refused = await sandbox_env.exec(["sh", "-c", "echo > /usr/of-nobody"], user="nobody")
    assert not refused.success


@pytest.mark.parametrize("sandbox_env", [NsboxConfig(policy={"ids": "single"})], indirect=True)
async def test_no_other_user(sandbox_env: NsboxSandboxEnvironment) -> None:
    """Where there is one user, another is the framework's own error; an unknown name is a result."""
    with pytest.raises(SandboxUserUnsupportedError, match="nobody"):
        await sandbox_env.exec(["true"], user="nobody")
    unknown = await sandbox_env.exec(["true"], user="no-such-user")
    assert not unknown.success and "no-such-user" in unknown.stderr


@pytest.mark.parametrize("sandbox_env", [NsboxConfig(why=True)], indirect=True)
async def test_why(sandbox_env: NsboxSandboxEnvironment) -> None:
    """With why, stderr ends with what in the policy may have made a command fail."""
    result = await sandbox_env.exec(["no-such-program"])
    assert "[sandbox] " in result.stderr
    assert "[sandbox]" not in (await sandbox_env.exec(["true"])).stderr


async def test_ended_sandbox(sandbox_env: NsboxSandboxEnvironment) -> None:
    """A sandbox that has ended is the framework's own error."""
    await sandbox_env.task.close()
    with pytest.raises(SandboxUnavailableError):
        await sandbox_env.exec(["true"])


async def test_samples_share_nothing() -> None:
    """What one sample writes into its home, /tmp, /var/tmp and the workspace, the next doesn't find."""
    places = "~ /tmp /var/tmp ."
    for _ in range(2):
        (made,) = (await NsboxSandboxEnvironment.sample_init("test", None, {})).values()
        found = await made.exec(["sh", "-c", f"for each in {places}; do ls -A $each; touch $each/left; done"])
        assert "left" not in found.stdout, found
        await NsboxSandboxEnvironment.sample_cleanup("test", None, {"default": made}, False)


BAD: list[tuple[Any, str]] = [
    ({"policy": {"netwrok": "none"}}, "netwrok"),
    ({"policy": "nsbox.toml", "sandboxes": {"a": {}}}, "sandboxes"),
    ({"sandboxes": {"a": {}}, "workspace": "/usr"}, "sandboxes"),
    ({"policy": {"limits": {"memory": "lots"}}}, "memory"),
    ({"workspace": "/no/such/place"}, "/no/such/place"),
]


@pytest.mark.parametrize(("config", "words"), BAD)
async def test_bad_configuration(config: dict[str, Any], words: str) -> None:
    """A configuration that makes no sense is an error that names what is wrong, and leaves nothing."""
    with pytest.raises((nsbox.PolicyError, TypeError), match=words):
        await NsboxSandboxEnvironment.task_init("test", NsboxConfig(**config))


async def test_bad_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So is a file with a mistake, or one that asks for no containment, or isn't there."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "work").mkdir()
    Path("wrong.toml").write_text('[sandboxes.first]\nworkspace = "work"\nnetwrok = "none"\n')
    with pytest.raises(nsbox.PolicyError, match="netwrok"):
        await NsboxSandboxEnvironment.task_init("test", "wrong.toml")
    Path("off.toml").write_text('workspace = "work"\nmode = "disabled"\n')
    with pytest.raises(nsbox.PolicyError, match="disabled"):
        await NsboxSandboxEnvironment.task_init("test", "off.toml")
    with pytest.raises(FileNotFoundError):
        await NsboxSandboxEnvironment.task_init("test", "missing.toml")


async def test_several_in_a_file(tmp_path: Path) -> None:
    """The tables below `sandboxes` are the sandboxes of a sample, in their order."""
    file = tmp_path / "many.toml"
    (tmp_path / "one").mkdir()
    file.write_text('[sandboxes.one]\nworkspace = "one"\n[sandboxes.two]\nnetwork = "none"\n')
    found = configs(str(file))
    assert list(found) == ["one", "two"]
    assert policy_of(*found["one"], directory=str(tmp_path)).workdir == os.path.realpath(tmp_path / "one")
    assert policy_of(*found["two"], directory=str(tmp_path)).workdir == os.path.realpath(tmp_path)
