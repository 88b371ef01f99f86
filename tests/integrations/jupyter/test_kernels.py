"""Kernels in sandboxes, with jupyter_client's manager and nbclient: containment, signals, restarts, ends, errors."""

from __future__ import annotations

import asyncio
import glob
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fences
import nbformat
import psutil
import pytest
from jupyter_client.manager import KernelManager
from nbclient import NotebookClient
from nsbox_kernels import LONG, execute, started

from nsbox import PolicyError, UnavailableError
from nsbox.integrations.jupyter import install

pytestmark = [pytest.mark.timeout(900), pytest.mark.usefixtures("kernels")]


def _await(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def notebook(*cells: str) -> Any:
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])


def run_notebook(name: str, directory: Path, *cells: str) -> list[Any]:
    made = notebook(*cells)
    options = {"kernel_name": name, "timeout": LONG, "startup_timeout": LONG, "allow_errors": True}
    client = NotebookClient(made, resources={"metadata": {"path": str(directory)}}, **options)
    asyncio.run(client.async_execute())  # execute() would keep its event loop for later
    return [cell.outputs for cell in made.cells]


@pytest.mark.smoke
def test_a_notebook(notebooks: Path) -> None:
    """nbclient executes one. A secret can't be read inside; the control, an ordinary kernel, reads it."""
    cells = (
        "import os; open('made', 'w').write('x'); print(os.getcwd())",
        f"print(open({str(notebooks.parent / 'secret')!r}).read())",
        "import socket; socket.create_connection(('127.0.0.1', 1), timeout=5)",
        "print(len([name for name in os.listdir('/proc') if name.isdecimal()]) < 10)",
    )
    first, second, third, fourth = run_notebook("contained", notebooks, *cells)
    assert first[0]["text"] == f"{notebooks}\n" and (notebooks / "made").read_text() == "x"
    assert second[0]["output_type"] == "error" and second[0]["ename"] in ("FileNotFoundError", "PermissionError")
    assert third[0]["ename"] in ("ConnectionRefusedError", "OSError")
    assert fourth[0]["text"] == "True\n"
    assert run_notebook("python3", notebooks, cells[1])[0][0]["text"] == "hidden\n"


def test_no_network(notebooks: Path) -> None:
    """No port of the machine is open for the kernel, and it has no interface but its own loopback."""
    code = "import socket; print([name for _, name in socket.if_nameindex()])"
    with started("contained", notebooks) as (manager, client):
        assert manager.transport == "ipc"
        assert manager.get_connection_info()["transport"] == "ipc"
        assert execute(client, code) in ("['lo']\n", "[]\n")


def test_interrupt_and_restart(notebooks: Path) -> None:
    """A loop is interrupted, variables stay; a restart forgets them, with the same client."""
    with started("contained", notebooks) as (manager, client):
        assert execute(client, "x = 41") == ""
        mark = notebooks / "mark"
        message = client.execute(f"open({str(mark)!r}, 'w').close()\nwhile True: pass")
        _await(mark.exists)
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=LONG)
        while reply["parent_header"].get("msg_id") != message:
            reply = client.get_shell_msg(timeout=LONG)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert execute(client, "print(x + 1)") == "42\n"
        before = manager.provisioner.pid
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=LONG)
        assert manager.provisioner.pid != before and not psutil.pid_exists(before)
        assert execute(client, "print(x + 1)") == "NameError"


@pytest.mark.smoke
def test_a_link_instead_of_the_connection_file(notebooks: Path, tmp_path: Path) -> None:
    """A kernel can't have the next start write to a file of the machine: it can only read what is written for it.

    The control: such a link in the notebook's directory is made, and leads there.
    """
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    replaced = f"import os; os.remove(PLACE); os.symlink({str(victim)!r}, PLACE)"
    with started("contained", notebooks) as (manager, client):
        execute(client, "import os, ipykernel.connect as connect; open('own', 'w').close()")
        assert execute(client, replaced.replace("PLACE", "'own'")) == ""
        assert (notebooks / "own").resolve() == victim
        assert execute(client, replaced.replace("PLACE", "connect.get_connection_file()")) == "OSError"
        directory = "os.path.dirname(connect.get_connection_file())"
        assert execute(client, f"os.rename({directory}, {directory} + 'x')") in ("OSError", "PermissionError")
        manager.restart_kernel(now=True)
        client.wait_for_ready(timeout=LONG)
        assert execute(client, "print('again')") == "again\n"
    assert victim.read_text() == "untouched"


def test_two_kernels(notebooks: Path, tmp_path: Path) -> None:
    """Two kernels of one server have its uid, and share a directory if their notebooks do, and nothing else."""
    (tmp_path / "other").mkdir()
    sockets = "import os, json, ipykernel.connect as c; s = json.load(open(c.get_connection_file()))['ip']; "
    look = sockets + "print(os.getuid())"
    with started("contained", notebooks) as (_, one), started("contained", tmp_path / "other") as (_, two):
        for client in (one, two):
            assert execute(client, look) == f"{os.getuid()}\n"
        assert execute(one, "open('mine', 'w').write('x'); open('/tmp/mine', 'w').write('x'); None") == ""
        assert (notebooks / "mine").stat().st_uid == os.getuid()
        assert execute(two, f"print(open({str(notebooks / 'mine')!r}).read())") in ("FileNotFoundError", "OSError")
        assert execute(two, "print(os.path.exists('/tmp/mine'))") == "False\n"
        place = execute(one, "print(os.path.dirname(s))").strip()
        assert execute(one, f"print(os.path.isdir({place!r}))") == "True\n"  # the control
        assert execute(two, f"print(os.path.exists({place!r}))") == "False\n"
        marked = "import subprocess; p = subprocess.Popen(['sleep', '31415'])"
        find = "import psutil; print(any('31415' in one.cmdline() for one in psutil.process_iter()))"
        assert execute(one, marked) == ""
        assert execute(one, find) == "True\n" and execute(two, find) == "False\n"
        with started("contained", notebooks) as (_, third):
            assert execute(third, "import os; print(open('mine').read(), os.path.exists('/tmp/mine'))") == "x False\n"


def test_a_gentle_shutdown(notebooks: Path) -> None:
    """The kernel ends by itself when it is asked to; nothing of what it started is left."""
    manager = KernelManager(kernel_name="contained")
    manager.start_kernel(cwd=str(notebooks))
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=LONG)
    execute(client, "import subprocess; p = subprocess.Popen(['sleep', '100000'], start_new_session=True)")
    inside = [one for one in psutil.process_iter(["cmdline"]) if one.info["cmdline"] == ["sleep", "100000"]]
    assert inside
    client.stop_channels()
    manager.shutdown_kernel(now=False)
    assert not manager.is_alive()
    _await(lambda: not any(one.is_running() for one in inside))


def test_a_kernel_that_dies(notebooks: Path) -> None:
    """The manager notices."""
    with started("contained", notebooks) as (manager, client):
        client.execute("import os; os._exit(3)")
        _await(lambda: not manager.is_alive())


@pytest.mark.parametrize("limit", ['memory = "50M"', "processes = 1"])
def test_a_kernel_that_dies_at_its_start(
    notebooks: Path, tmp_path: Path, limit: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Jupyter says that it died; nsbox's line in the log says which limits it has. A kernel that is ended has no line."""
    (tmp_path / "p.toml").write_text(f"[limits]\n{limit}\n")
    install("small", policy=tmp_path / "p.toml", prefix=tmp_path, check=False)
    with pytest.raises(RuntimeError, match="Kernel died"), started("small", notebooks):
        pass
    (line,) = [record.getMessage() for record in caplog.records if record.name == "nsbox.jupyter"]
    assert line.startswith("the kernel 'small' ended, ") and limit.partition(" ")[0] + "=" in line
    caplog.clear()
    with started("contained", notebooks):
        pass
    assert not [record for record in caplog.records if record.name == "nsbox.jupyter"]


def test_a_long_directory_for_temporary_files(notebooks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel's sockets have short names all the same."""
    (tmp_path / ("long" * 25)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / ("long" * 25)))
    with started("contained", notebooks) as (_, client):
        assert execute(client, "print(1)") == "1\n"


def _wheel(directory: Path) -> Path:
    """Make a wheel of a package that has one module, toolbox."""
    path = directory / "toolbox-1.0-py3-none-any.whl"
    info = "toolbox-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("toolbox.py", "answer = 42\n")
        file.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toolbox\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return path


def test_installing_packages(notebooks: Path, tmp_path: Path) -> None:
    """The page's policy lets `%pip` and `!pip` install into the notebook's directory. The control: by default, neither can.

    After the first install, the kernel is restarted; later ones can be imported at once.
    """
    page = (Path(__file__).resolve().parents[3] / "docs/integrations/jupyter.md").read_text()
    (policy,) = [block.code for block in fences.blocks(page) if block.language == "toml" and "PIP_TARGET" in block.code]
    (tmp_path / "p.toml").write_text(policy)
    install("packages", policy=tmp_path / "p.toml", prefix=tmp_path, check=False)
    _wheel(notebooks)
    words = "pip install --no-index --find-links . toolbox"
    for command in (f"%{words}", f"!{words}"):
        with started("contained", notebooks) as (_, client):
            execute(client, command)
            assert execute(client, "import toolbox") == "ModuleNotFoundError"
        is_first = not (notebooks / "packages").exists()
        with started("packages", notebooks) as (manager, client):
            execute(client, command)
            if is_first:
                manager.restart_kernel(now=True)
                client.wait_for_ready(timeout=LONG)
            assert execute(client, "import toolbox; print(toolbox.answer)") == "42\n", command
        for path in (notebooks / "packages").iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def test_the_kernels_own_programs(notebooks: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They come first in PATH, after those of tools_bin. A PATH that the policy sets stays as it is."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    code = "import os; print(os.environ['PATH'])"
    own = os.path.dirname(sys.executable)
    (tmp_path / "tools").mkdir()
    for i, (policy, path) in enumerate(
        (
            ("", own),
            (f"tools_bin = '{tmp_path}/tools'", f"{tmp_path}/tools:{own}"),
            ('env = {PATH = "/usr/bin:/x"}', "/usr/bin:/x"),
        )
    ):
        (tmp_path / "p.toml").write_text(policy)
        install(f"own{i}", policy=tmp_path / "p.toml", prefix=tmp_path, check=False)
        with started(f"own{i}", notebooks) as (_, client):
            assert f"{execute(client, code).strip()}:".startswith(f"{path}:")


def test_the_environment(notebooks: Path, monkeypatch: pytest.MonkeyPatch, kernels: Path) -> None:
    """The caller's variables stay outside; those of kernel.json are there."""
    monkeypatch.setenv("A_TOKEN", "secret")
    spec = json.loads((kernels / "contained/kernel.json").read_text())
    (kernels / "contained/kernel.json").write_text(json.dumps({**spec, "env": {"MODE": "offline"}}))
    code = "import os; print(os.environ.get('A_TOKEN'), os.environ.get('MODE'))"
    with started("contained", notebooks) as (_, client):
        assert execute(client, code) == "None offline\n"
    with started("python3", notebooks) as (_, client):
        assert execute(client, code) == "secret None\n"


def test_a_policy_file(notebooks: Path, tmp_path: Path) -> None:
    """The installed kernel has the file's policy, and the workspace that install() was given."""
    (tmp_path / "p.toml").write_text('[tool.nsbox]\nenv = {COLOUR = "red"}\n')
    (tmp_path / "inputs").mkdir()
    (tmp_path / "inputs/in").write_text("seen")
    options = {"policy": tmp_path / "p.toml", "section": "tool.nsbox", "workspace": tmp_path / "inputs"}
    install("red", prefix=tmp_path, display_name="Red", **options)
    code = f"import os; print(os.environ['COLOUR'], open({str(tmp_path / 'inputs/in')!r}).read())"
    with started("red", tmp_path / "inputs") as (manager, client):
        assert manager.kernel_spec is not None and manager.kernel_spec.display_name == "Red"
        assert execute(client, code) == "red seen\n"
    with pytest.raises(PolicyError, match="netwrok"):
        (tmp_path / "wrong.toml").write_text('netwrok = "none"\n')
        install("wrong", policy=tmp_path / "wrong.toml", prefix=tmp_path)


def test_a_machine_that_cannot(notebooks: Path, tmp_path: Path) -> None:
    """A policy that can't be had is an error of the start, with the reasons. The next start of that manager works."""
    (tmp_path / "p.toml").write_text("")
    install("never", policy=tmp_path / "p.toml", prefix=tmp_path)
    (tmp_path / "p.toml").write_text('backend = "seatbelt"\n')
    manager = KernelManager(kernel_name="never")
    with pytest.raises((UnavailableError, PolicyError), match=r"seatbelt|this machine can't do it"):
        manager.start_kernel(cwd=str(notebooks))
    assert not glob.glob(os.path.join(tempfile.gettempdir(), "nsbox-kernel-*/sockets/s-*"))
    (tmp_path / "p.toml").write_text("")
    manager.start_kernel(cwd=str(notebooks))
    client = manager.blocking_client()
    client.start_channels()
    client.wait_for_ready(timeout=LONG)
    assert execute(client, "print(1)") == "1\n"
    client.stop_channels()
    manager.shutdown_kernel(now=True)


def test_the_example(kernels: Path) -> None:
    """The program of the documentation shows what is refused."""
    program = Path(__file__).resolve().parents[3] / "examples/integrations/jupyter.py"
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, cwd="/", timeout=LONG)
    lines = done.stdout.splitlines()
    assert done.returncode == 0 and len(lines) == 4, done.stdout + done.stderr
    assert lines[0] == "11" and "/etc/shadow" in lines[1] and lines[3] == "result.txt: made inside"
    assert "unreachable" in lines[2] or "not permitted" in lines[2], lines[2]
