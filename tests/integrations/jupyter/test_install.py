"""Installing contained kernels, and checking them: what this machine can't grant is an error before a notebook is opened."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from jupyter_client.kernelspec import KernelSpecManager, NoSuchKernel
from nsbox_kernels import LONG, execute, started

from nsbox import PolicyError, UnavailableError
from nsbox.integrations.jupyter import install, main

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("kernels")]


def test_base(tmp_path: Path) -> None:
    """A contained kernel of an installed one keeps its command, and says whose it is."""
    install("py", base="python3", prefix=tmp_path)
    spec, old = KernelSpecManager().get_kernel_spec("py"), KernelSpecManager().get_kernel_spec("python3")
    assert spec.argv == old.argv and spec.display_name == f"{old.display_name} (nsbox)"
    assert spec.metadata["kernel_provisioner"]["provisioner_name"] == "nsbox"
    with pytest.raises(NoSuchKernel):
        install("x", base="no-such-kernel", prefix=tmp_path)


def test_a_path_with_dots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter started as `../venv/bin/python` makes a kernel that starts, though its sandbox lacks the `X` of `X/..`."""
    (tmp_path / "here").mkdir()
    path = os.path.join(tmp_path, "here", os.path.relpath(sys.executable, os.path.realpath(tmp_path / "here")))
    monkeypatch.setattr(sys, "executable", path)
    install("dots", prefix=tmp_path)
    assert KernelSpecManager().get_kernel_spec("dots").argv[0] == path


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It installs, `jupyter kernelspec list` shows the kernel, and a wrong policy is one line on stderr."""
    assert main(["install", "--name", "by-command", "--prefix", str(tmp_path)]) == 0
    assert "installed in" in capsys.readouterr().out
    command = [str(Path(sys.executable).with_name("jupyter")), "kernelspec", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, env=os.environ, timeout=LONG)
    assert "by-command" in listed.stdout and "contained" in listed.stdout
    assert main(["install", "--name", "x", "--prefix", str(tmp_path), "--policy", str(tmp_path / "none.toml")]) == 1
    assert "none.toml" in capsys.readouterr().err
    assert main(["install", "--name", "a/b", "--prefix", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("policy", "problem"),
    [
        ('backend = "seatbelt"', "Seatbelt"),
        ('readable = ["/no/such/directory"]', "/no/such/directory"),
        ('[limits]\nmemory = "1M"', "the kernel ended while it started, "),
        ('[limits]\nmemory = "50M"', "limits.memory=50 MiB"),
        ("[limits]\nprocesses = 1", "processes=1"),
    ],
)
def test_what_this_machine_cannot_grant(
    tmp_path: Path, policy: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is an error of `install`, which installs nothing. The control: the same with an empty policy works."""
    file, command = tmp_path / "p.toml", ["install", "--name", "x", "--prefix", str(tmp_path / "place")]
    file.write_text(policy + "\n")
    assert main([*command, "--policy", str(file)]) == 1
    said = capsys.readouterr().err
    assert problem in said
    assert ("--no-check" in said) is ("no/such" not in policy)  # that is an error of the file, here and elsewhere
    assert not (tmp_path / "place").exists()
    file.write_text("")
    assert main([*command, "--policy", str(file)]) == 0
    assert (tmp_path / "place/share/jupyter/kernels/x/kernel.json").exists()


def test_the_file_system(kernels: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A notebook in "/" can't start; what to do is said in the words of a kernel's user."""
    assert main(["check", "--name", "contained", "/"]) == 1
    said = capsys.readouterr().err
    assert "'/' can't be a kernel's directory" in said and "put the notebook in a project's own directory" in said


def test_a_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernels: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A notebook in a home starts if the policy's file names the home, as the error says, and `deny` hides keys there."""
    home = tmp_path / "me"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/id").write_text("PRIVATE KEY")
    monkeypatch.setenv("HOME", str(home))
    assert main(["check", "--name", "contained", str(home)]) == 1
    said = capsys.readouterr().err
    assert "is a home directory" in said and "`writable_paths`" in said and "--policy FILE" in said
    key = f"print(open({str(home / '.ssh/id')!r}).read())"
    for deny, shown in (("", "PRIVATE KEY\n"), ('deny = ["~/.ssh"]\n', "PermissionError")):  # the first is the control
        (tmp_path / "p.toml").write_text(f'writable_paths = ["~"]\n{deny}')
        install("home", policy=tmp_path / "p.toml", prefix=tmp_path, check=False)
        with started("home", home) as (_, client):
            assert execute(client, key) == shown


def test_for_another_machine(tmp_path: Path) -> None:
    """Without the check a kernel is installed that can't start here; a wrong policy is still an error."""
    (tmp_path / "p.toml").write_text('backend = "seatbelt"\n')
    with pytest.raises(UnavailableError, match="Seatbelt"):
        install("mac", policy=tmp_path / "p.toml", prefix=tmp_path)
    install("mac", policy=tmp_path / "p.toml", prefix=tmp_path, check=False)
    assert "mac" in KernelSpecManager().find_kernel_specs()
    assert main(["check", "--name", "mac", str(tmp_path)]) == 1
    (tmp_path / "p.toml").write_text('netwrok = "none"\n')
    with pytest.raises(PolicyError, match="netwrok"):
        install("mac", policy=tmp_path / "p.toml", prefix=tmp_path, check=False)


def test_two_workspaces(tmp_path: Path) -> None:
    """A kernel's workspace that the policy's file contradicts is an error: the file's would be writable, not the kernel's."""
    (tmp_path / "p.toml").write_text('workspace = "."\n')
    (tmp_path / "data").mkdir()
    with pytest.raises(PolicyError, match=r"names the workspace .*, and the kernel's is .*/data"):
        install("two", policy=tmp_path / "p.toml", workspace=tmp_path / "data", prefix=tmp_path)
    install("one", policy=tmp_path / "p.toml", prefix=tmp_path)


def test_check(notebooks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`check` shows the workspace that the kernel has; the command that it names, `nsbox check`, shows the same."""
    (tmp_path / "p.toml").write_text('[tool.nsbox]\nnetwork = "none"\n')
    install("contained-2", policy=tmp_path / "p.toml", section="tool.nsbox", prefix=tmp_path)
    capsys.readouterr()
    assert main(["check", "--name", "contained-2", str(notebooks)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "contained-2: ok"
    assert f"  {'starts in':<12}{notebooks}" in lines and f"  {'writable':<12}{notebooks}" in lines
    more = next(line for line in lines if line.startswith("  more"))[14:]
    assert more == f"nsbox check {tmp_path}/p.toml --section tool.nsbox -w {notebooks}"
    program = Path(sys.executable).with_name("nsbox")
    shown = subprocess.run([program, *more.split()[1:]], capture_output=True, text=True, check=True).stdout
    assert f"  {'starts in':<12}{notebooks}\n" in shown and f"  {'writable':<12}{notebooks}\n" in shown
    assert main(["check", "--name", "contained", str(notebooks)]) == 0
    assert f"  {'writable':<12}{notebooks}\n" in capsys.readouterr().out
    assert main(["check", "--name", "python3"]) == 1
    assert "python3 isn't contained" in capsys.readouterr().err


def test_check_of_a_directory_outside(notebooks: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the file names a workspace, a notebook elsewhere can't start, and `check` says so."""
    (tmp_path / "other").mkdir()
    (tmp_path / "p.toml").write_text('workspace = "other"\n')
    install("elsewhere", policy=tmp_path / "p.toml", prefix=tmp_path)
    assert main(["check", "--name", "elsewhere", str(tmp_path / "other")]) == 0
    assert main(["check", "--name", "elsewhere", str(notebooks)]) == 1
    assert f"{notebooks} " in capsys.readouterr().err
