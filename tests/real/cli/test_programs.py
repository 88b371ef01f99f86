"""Real programs in the default workspace policy: git, pip, gcc, pytest, and the nsbox command itself."""

from __future__ import annotations

import base64
import functools
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import Policy


def run(policy: Policy, *command: str, **options: object) -> str:
    done = nsbox.run(command, policy=policy, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options)
    assert done.returncode == 0, done.stdout
    return done.stdout


@needs.programs("git")
def test_git_clone(tmp_path: Path, workspace: Path) -> None:
    """git clones a repository that is readable, commits in the clone, and sees its own commit."""
    source = tmp_path / "source"
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    me = ["-c", "user.name=n", "-c", "user.email=e@x"]
    subprocess.run(["git", "init", "-q", str(source)], check=True, env=env)
    (source / "file").write_text("one\n")
    subprocess.run(["git", "add", "."], cwd=source, check=True, env=env)
    subprocess.run(["git", *me, "commit", "-qm", "first"], cwd=source, check=True, env=env)
    policy = Policy.workspace(workspace, read=[source])
    run(policy, "git", "clone", "-q", str(source), "clone")
    assert (workspace / "clone" / "file").read_text() == "one\n"
    (workspace / "clone" / "file").write_text("two\n")
    run(policy, "git", *me, "commit", "-qam", "second", cwd=workspace / "clone")
    assert run(policy, "git", "log", "--format=%s", cwd=workspace / "clone") == "second\nfirst\n"
    with pytest.raises(AssertionError):  # the source can't be changed
        run(policy, "git", "push", "-q", "origin", "HEAD:refs/heads/new", cwd=workspace / "clone")


@needs.programs("gcc")
def test_gcc(policy: Policy, workspace: Path) -> None:
    """gcc compiles in the workspace, and the program runs."""
    (workspace / "hello.c").write_text('#include <stdio.h>\nint main(void) { puts("compiled"); return 7; }\n')
    run(policy, "gcc", "-O1", "-o", "hello", "hello.c")
    done = nsbox.run(["./hello"], policy=policy, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (7, b"compiled\n")


def tiny_wheel(directory: Path) -> Path:
    """Write a wheel with one module and one script, by hand."""
    files = {
        "tiny_nsbox.py": "def main(): print('tiny', __name__)\n",
        "tiny_nsbox-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: tiny-nsbox\nVersion: 1.0\n",
        "tiny_nsbox-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nGenerator: nsbox\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny_nsbox-1.0.dist-info/entry_points.txt": "[console_scripts]\ntiny-nsbox = tiny_nsbox:main\n",
    }
    record = "tiny_nsbox-1.0.dist-info/RECORD"
    rows = []
    for name, text in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(text)}")
    path = directory / "tiny_nsbox-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in (*files.items(), (record, "\n".join([*rows, f"{record},,", ""]))):
            archive.writestr(name, text)
    return path


@needs.module("pip")
def test_pip_into_a_venv(tmp_path: Path, workspace: Path) -> None:
    """A venv is made in the workspace, and pip installs a local wheel into it, without a network."""
    wheel = tiny_wheel(tmp_path)
    policy = Policy.workspace(
        workspace, read=[wheel], env={"PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_CACHE_DIR": "1"}
    )
    run(policy, sys.executable, "-m", "venv", "--without-pip", "venv")
    run(
        policy,
        sys.executable,
        "-m",
        "pip",
        "--python",
        "venv",
        "install",
        "-q",
        "--no-index",
        "--root-user-action=ignore",
        str(wheel),
    )
    assert run(policy, "venv/bin/tiny-nsbox") == "tiny tiny_nsbox\n"
    assert run(policy, "venv/bin/python", "-c", "import sys, tiny_nsbox; print(tiny_nsbox.__file__)").startswith(
        str(workspace)
    )


@needs.module("ensurepip")
def test_venv_with_pip(workspace: Path) -> None:
    """python -m venv with its own pip, from the wheels that come with the interpreter or the system."""
    policy = Policy.workspace(workspace)
    made = nsbox.run([sys.executable, "-m", "venv", "venv"], policy=policy, capture_output=True, text=True)
    if "ensurepip is not available" in made.stdout:
        pytest.skip("this system's ensurepip has no wheels")
    assert made.returncode == 0, made.stdout + made.stderr
    assert run(policy, "venv/bin/python", "-m", "pip", "--version").startswith("pip ")


@needs.module("pytest")
def test_pytest(policy: Policy, workspace: Path) -> None:
    """A pytest run in the workspace, with temporary files, a failing test and a report."""
    (workspace / "test_it.py").write_text(
        "import subprocess\n"
        "def test_good(tmp_path): (tmp_path / 'f').write_text('x'); assert subprocess.run(['true']).returncode == 0\n"
        "def test_bad(): assert 1 == 2\n"
    )
    (workspace / "pytest.ini").write_text("[pytest]\n")
    done = nsbox.run(
        [sys.executable, "-m", "pytest", "-q", "--junitxml=out.xml", "--basetemp=/tmp/own"],
        policy=policy,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == 1
    assert "1 failed, 1 passed" in done.stdout
    assert "<testsuite" in (workspace / "out.xml").read_text()


@needs.programs("make")
@needs.programs("gcc")
def test_make_in_parallel(policy: Policy, workspace: Path) -> None:
    """make -j with its job server, on several C files."""
    names = [f"f{i}" for i in range(6)]
    for name in names:
        (workspace / f"{name}.c").write_text(f"int {name}(void) {{ return 1; }}\n")
    objects = " ".join(f"{name}.o" for name in names)
    (workspace / "Makefile").write_text(f"all: lib.a\nlib.a: {objects}\n\tar rcs $@ $^\n")
    run(policy, "make", "-j3", "-s")
    assert (workspace / "lib.a").exists()


@needs.programs("sqlite3")
def test_sqlite_locks_and_wal(policy: Policy, workspace: Path) -> None:
    """SQLite in WAL mode: shared memory maps and file locks in the workspace work."""
    run(policy, "sqlite3", "db", "pragma journal_mode=wal; create table t(x); insert into t values (1), (2);")
    assert run(policy, "sqlite3", "db", "select sum(x) from t;") == "3\n"


@needs.programs("bash")
def test_bash_features(policy: Policy) -> None:
    """Process substitution, here documents, jobs, /dev/fd: what shells need of /dev and /proc."""
    script = 'cat <(echo a) - <<< b; exec 3>&1; echo c >&3; { sleep 0 & wait $!; } && echo d; [ -e /dev/fd/1 ] && echo e; echo "$$"'
    assert run(policy, "bash", "-c", script) == "a\nb\nc\nd\ne\n2\n"


@needs.programs("ps")
def test_ps_sees_the_sandbox_only(policy: Policy) -> None:
    """ps lists pid 1 and the command's own processes."""
    lines = run(policy, "ps", "-e", "-o", "pid=,comm=").split("\n")
    assert [line.split()[1] for line in lines if line] == ["nsbox-init", "ps"]


def test_the_command_line(workspace: Path) -> None:
    """`nsbox run` runs a command with its streams and status; `nsbox explain` prints the plan."""
    command = [sys.executable, "-I", "-m", "nsbox"]
    options = {"cwd": workspace, "capture_output": True, "text": True}
    done = subprocess.run(
        [*command, "run", "--", "sh", "-c", "cat; echo err >&2; touch made; exit 5"], input="in", **options
    )
    assert (done.returncode, done.stdout, done.stderr) == (5, "in", "err\n")
    assert (workspace / "made").exists()
    processes = "ps aux" if shutil.which("ps") else "cat /proc/1/comm"
    done = subprocess.run(
        [*command, "run", "--", "sh", "-c", f"id; ls -la /; cat /proc/self/mountinfo; {processes}"], **options
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "nsbox-init" in done.stdout
    assert subprocess.run([*command, "run", "--", "/no/such"], **options).returncode == 127
    assert subprocess.run([*command, "run", "--", "/etc"], **options).returncode == 126
    assert subprocess.run([*command, "run", "--", "sh", "-c", "kill -9 $$"], **options).returncode == 137
    assert "bind" in subprocess.run([*command, "explain"], **options).stdout


INNER = "import nsbox; print(nsbox.run(['echo', 'inner'], capture_output=True, text=True).stdout, end='')"


IN_EACH_OTHER = """
import nsbox, sys
policy = nsbox.Policy.workspace(".", nested=True)
depth = int(sys.argv[1])
inner = [sys.executable, "-P", "-c", sys.argv[2], str(depth - 1), sys.argv[2]] if depth else ["echo", "deep"]
sys.exit(nsbox.run(inner, policy=policy).returncode)
"""


@pytest.mark.parametrize("way", ["cold", "warm"])
def test_nsbox_in_nsbox(workspace: Path, way: str) -> None:
    """With nested=True a command can make sandboxes itself, and the commands in these too."""
    policy = Policy.workspace(workspace, nested=True)
    command = [sys.executable, "-P", "-c", IN_EACH_OTHER, "1", IN_EACH_OTHER]
    with nsbox.Sandbox(policy) as box:
        if way == "warm":
            box.run(["true"])
        runner = box.run if way == "warm" else functools.partial(nsbox.run, policy=policy)
        done = runner(command, cwd=workspace, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "deep\n"), done.stderr


@needs.programs("bwrap", "unshare")
@pytest.mark.parametrize("kind", ["host", "nested"])
def test_other_sandboxes_in_ours(workspace: Path, kind: str) -> None:
    """Under Policy.host(), and with nested=True, unshare(1) and bwrap make sandboxes, with a procfs of their own."""
    policy = Policy.host() if kind == "host" else Policy.workspace(workspace, nested=True)
    assert run(policy, "unshare", "-Urpf", "--mount-proc", "id", "-u") == "0\n"
    bwrap = ["bwrap", "--unshare-user", "--unshare-pid", "--ro-bind", "/", "/", "--proc", "/proc", "echo", "in"]
    assert run(policy, *bwrap) == "in\n"


def test_nsbox_in_nsbox_unasked(workspace: Path) -> None:
    """Without nested=True, or where a fresh procfs can't be had, the inner error says what is in the way."""
    policies = [Policy.workspace(workspace, uid=1000, gid=1000)]
    if os.geteuid() == 0:  # the kernel's root, in whose /proc something is covered
        policies.append(Policy.workspace(workspace, ids="full", uid=1000, gid=1000, nested=True))
        workspace.chmod(0o777)
    for policy in policies:
        done = nsbox.run([sys.executable, "-I", "-c", INNER], policy=policy, capture_output=True, text=True)
        assert done.returncode == 1
        last = done.stderr.splitlines()[-1]
        assert "SetupError" in last or "UnavailableError" in last
        assert "nested" in last


@needs.module("pip")
@pytest.mark.parametrize("is_writable", [False, True])
def test_pip_and_a_cache_that_is_only_readable(is_writable: bool, tmp_path: Path, workspace: Path) -> None:
    """What run-tools.md says: a user's pip doesn't use a cache in `read`, but one in `write`. It reads wheels in `read`.

    As root, pip only looks at who owns the cache.
    """
    cache, wheels = tmp_path / "cache", tmp_path / "wheels"
    cache.mkdir()
    wheels.mkdir()
    wheel = tiny_wheel(wheels)
    env = {"PIP_CACHE_DIR": str(cache), "PIP_FIND_LINKS": str(wheels), "PIP_NO_INDEX": "1"}
    opened = {"write": [cache], "read": [wheels]} if is_writable else {"read": [cache, wheels]}
    policy = Policy.workspace(workspace, env=env, **opened)
    said = run(policy, sys.executable, "-m", "pip", "download", "--dest", "got", "tiny-nsbox")
    assert ("The cache has been disabled" in said) == (not is_writable and os.geteuid() != 0), said
    assert (workspace / "got" / wheel.name).exists()
