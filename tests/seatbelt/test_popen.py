"""nsbox as on macOS, on Linux: Python's part of it with the C core for macOS and a stand-in for libsandbox.

The stand-in confines nothing: what is seen here is what is asked of it, and that the command is what subprocess's is.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from nsbox_seatbelt import pretend

HEAD = """
import json, os, signal, subprocess, sys, threading, time
import nsbox
from nsbox import Policy; from nsbox._spawn import start as _spawn; from nsbox._machine import probe as _probe; from nsbox._spawn import seatbelt as _seatbelt
from nsbox._lookup.host import host_for
work = sys.argv[1]
policy = Policy.workspace(work)

def way(name):
    "Have profiles applied in this way from now on."
    from nsbox._base.frozen import replace
    key = (os.geteuid(), os.getegid())
    _probe._known[key] = replace(nsbox.probe(), seatbelt_ways=(name,))

def temporary():
    return sorted(name for name in os.listdir(nsbox.probe().temporary) if name.startswith("nsbox-"))
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "calls"


@pytest.fixture
def mac(site: Path, tmp_path: Path, log: Path) -> Any:
    """Run code, after HEAD, as on a Mac; returns what it prints. It must not fail."""
    work, temporary = tmp_path / "work", tmp_path / "T"
    work.mkdir()
    temporary.mkdir()
    work, temporary = work.resolve(), temporary.resolve()

    def run(code: str, **env: str) -> str:
        done = pretend.run(
            site, HEAD + code, str(work), env=os.environ | {"TMPDIR": str(temporary), "NSBOX_STUB_LOG": str(log)} | env
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert os.listdir(temporary) == [], "temporary files are left behind"
        return done.stdout

    return run


def calls(log: Path) -> list[tuple[str, int, list[str]]]:
    """Return what libsandbox was asked: the function, by which process, with what."""
    rows = [json.loads(line) for line in log.read_text().splitlines()]
    return [(row["call"], row["pid"], row["args"]) for row in rows]


def test_a_command(mac: Any, log: Path) -> None:
    """Its profile is compiled in the caller with the policy's paths, and applied by the command, once."""
    out = mac("print(os.getpid()); p = nsbox.Popen(['true'], policy=policy); print(p.pid); print(p.wait(), work)")
    caller, command, rest = out.split("\n")[:3]
    status, work = rest.split(" ", 1)
    assert status == "0"
    made = calls(log)
    assert [(name, pid) for name, pid, _ in made if name == "apply"] == [("apply", int(command))]
    assert {pid for name, pid, _ in made if name in ("compile_string", "set_param")} == {int(caller)}
    params = dict(args for name, _, args in made if name == "set_param")
    assert work in [value.removeprefix("/private") for value in params.values()]
    assert os.path.basename(params["TMP"]).startswith(f"nsbox-{caller}-")
    assert [name for name, _, _ in made].count("compile_string") == 1


def test_compiled_once(mac: Any, log: Path) -> None:
    """Commands one after the other have the same profile, and a directory that is fresh each time; those at a time don't."""
    out = mac(
        "script = 'echo $TMPDIR; ls -A $TMPDIR; touch $TMPDIR/left'\n"
        "for _ in range(5): print(nsbox.check_output(script, shell=True, policy=policy, text=True).split())\n"
        "both = [nsbox.Popen('echo $TMPDIR; read x', shell=True, policy=policy, stdin=-1, stdout=-1, text=True) for _ in '12']\n"
        "print(len({p.stdout.readline() for p in both}), len(temporary()))\n"
        "for p in both: p.communicate('')\n"
        "print(temporary())\n"
    )
    *runs, at_once, left = out.splitlines()
    assert len(set(runs)) == 1
    assert at_once == "2 2"
    assert left == "[]"
    assert [name for name, _, _ in calls(log)].count("compile_string") == 2


def test_what_is_left_in_a_directory(mac: Any) -> None:
    """Directories without permissions, deep ones, links to outside: all is removed, and nothing else."""
    mac(
        "os.makedirs(work + '/keep/me')\n"
        "script = 'cd $TMPDIR; mkdir -p a/b/c; touch a/b/c/f; ln -s %s/keep l; ln -s / r; ' % work\n"
        "script += 'python3 -c \"import os\\nfor _ in range(600): os.mkdir(chr(100) * 9); os.chdir(chr(100) * 9)\"; '\n"
        "script += 'chmod 500 $TMPDIR/a/b; chmod 0 $TMPDIR'\n"
        "assert nsbox.call(script, shell=True, policy=policy) == 0\n"
        "assert temporary() == []\n"
        "assert os.path.isdir(work + '/keep/me')\n"
    )


def test_a_callers_leftovers(mac: Any) -> None:
    """A directory that a caller has left who was killed is removed by the next one; one of a living caller isn't."""
    mac(
        "child = subprocess.Popen(['true']); child.wait()\n"
        "at = nsbox.probe().temporary\n"
        "dead, alive = f'{at}/nsbox-{child.pid}-x', f'{at}/nsbox-{os.getppid()}-x'\n"
        "for path in (dead, alive): os.mkdir(path); open(path + '/f', 'w').close()\n"
        "for n in range(5): os.mkdir(f'{dead}{n}'); os.chmod(f'{dead}{n}', 0)\n"
        "os.symlink('/', f'{at}/nsbox-{child.pid}-link')\n"
        "nsbox.run(['true'], policy=policy)\n"
        "assert [os.path.basename(alive)] == temporary(), temporary()\n"
        "os.unlink(alive + '/f'); os.rmdir(alive)\n"
    )


CHILD = """
import os, sys
fds = [fd for fd in map(int, os.listdir('/proc/self/fd')) if os.path.exists(f'/proc/self/fd/{fd}')]
print([sys.argv[1:], os.getcwd(), os.environ['A'], os.environ.get('LD_LIBRARY_PATH'), sorted(fds), os.getsid(0) == os.getpid()])
sys.exit(7)
"""


@pytest.mark.parametrize("name", ["compiled", "helper", "sandbox-exec"])
def test_ways(mac: Any, site: Path, log: Path, name: str) -> None:
    """Each way gives the same command: its arguments, environment, directory, descriptors and status."""
    fake_program(site)
    out = mac(
        f"way({name!r})\n"
        "os.dup2(os.open('/dev/null', os.O_RDONLY), 9)\n"
        "os.mkdir(work + '/sub')\n"
        f"command = ['/usr/bin/python3', '-I', '-S', '-c', {CHILD!r}, 'a b', '-x', '']\n"
        "done = nsbox.run(command, policy=policy, cwd=work + '/sub', env={'A': '1', 'LD_LIBRARY_PATH': '/none'},\n"
        "    pass_fds=[9], capture_output=True, text=True)\n"
        "expected = [['a b', '-x', ''], work + '/sub', '1', '/none', [0, 1, 2, 9], True]\n"
        "assert (done.returncode, done.stdout.strip()) == (7, str(expected)), done\n"
        "p = nsbox.Popen(['sleep', '50'], policy=policy); p.terminate(); print(p.wait())\n"
        "print(nsbox.explain(policy).split('[')[1].split(']')[0])\n"
    )
    assert out.splitlines() == ["-15", name]
    assert ("apply" in [call for call, _, _ in calls(log)]) is (name == "compiled")


def fake_program(site: Path) -> None:
    """Replace sandbox-exec(1) by a program that checks its arguments as that does, and executes the command."""
    program = site / "sandbox-exec"
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1" = -p ] || exit 64\n'
        'case $2 in "(version 1)"*) ;; *) exit 65 ;; esac\n'
        "shift 2\n"
        'while [ "$1" = -D ]; do case $2 in *=*) shift 2 ;; *) exit 66 ;; esac; done\n'
        'exec "$@"\n'
    )
    program.chmod(0o755)


@pytest.mark.parametrize("name", ["compiled", "helper", "sandbox-exec"])
def test_programs_that_are_not_there(mac: Any, site: Path, name: str) -> None:
    """What can't be executed raises what subprocess raises, in each way, and leaves nothing behind."""
    fake_program(site)
    mac(
        f"way({name!r})\n"
        "open(work + '/plain', 'w').close()\n"
        "for program, kind in (('/none', FileNotFoundError), ('none', FileNotFoundError), (work + '/plain', PermissionError)):\n"
        "    try: nsbox.Popen([program], policy=policy)\n"
        "    except OSError as error: assert type(error) is kind and error.filename == program, (program, error)\n"
        "    else: raise AssertionError(program)\n"
        "assert temporary() == []\n"
        "assert len(os.listdir('/proc/self/fd')) == 4, os.listdir('/proc/self/fd')\n"
    )


def test_a_refused_profile(mac: Any) -> None:
    """What libsandbox says about a profile that it doesn't take is in the error; nothing is executed."""
    mac(
        "try: nsbox.run(['touch', work + '/made'], policy=policy)\n"
        "except nsbox.SetupError as error: assert 'compile the profile' in str(error) and 'seatbelt' in error.op, error\n"
        "else: raise AssertionError\n"
        "assert not os.path.exists(work + '/made') and temporary() == []\n",
        NSBOX_STUB_FAIL="compile_string",
    )


def test_a_profile_that_cannot_be_applied(mac: Any) -> None:
    """The command isn't executed without it."""
    mac(
        "try: nsbox.run(['touch', work + '/made'], policy=policy)\n"
        "except nsbox.SetupError as error: assert error.step == 'apply the profile', error\n"
        "else: raise AssertionError\n"
        "assert not os.path.exists(work + '/made') and temporary() == []\n",
        NSBOX_STUB_FAIL="apply",
    )


def test_a_sandbox_already(mac: Any) -> None:
    """A process that is confined itself gets an error that says so, before anything is tried; the doctor says it too."""
    out = mac(
        "try: nsbox.run(['true'], policy=policy)\n"
        "except nsbox.UnavailableError as error: print(error)\n"
        "from nsbox._popen.doctor import doctor\n"
        "print([(c.name, c.state) for c in doctor()])\n",
        NSBOX_STUB_CONFINED="1",
    )
    assert "in a sandbox already" in out
    assert "('not in a sandbox already', 'fails')" in out


def test_doctor(mac: Any, site: Path) -> None:
    """Each part is tried, and the default policy as a whole."""
    fake_program(site)
    out = mac("from nsbox._popen.doctor import doctor\nfor c in doctor(): print(c.name, c.state, c.said)\n")
    assert len(out.splitlines()) == 7
    assert all(" works" in line for line in out.splitlines()), out
    assert "the default policy, whole works by seatbelt" in out


def test_without_the_helper(mac: Any) -> None:
    """Without the program that keeps the lifeline nothing is started, and it is said what to do."""
    mac(
        "host = nsbox.probe()\n"
        "from nsbox._core import darwin; darwin.HELPER += '-gone'\n"
        "try: nsbox.run(['true'], policy=policy)\n"
        "except nsbox.SetupError as error: assert error.step == 'execute the helper program' and 'install' in error.hint, error\n"
        "else: raise AssertionError\n"
        "import nsbox._machine.darwin as asked; asked.HELPER = darwin.HELPER\n"
        "try: nsbox.probe(refresh=True); nsbox.run(['true'], policy=policy)\n"
        "except nsbox.UnavailableError as error: assert 'is missing' in str(error), error\n"
        "else: raise AssertionError\n"
    )


def test_directories_outside(mac: Any) -> None:
    """A directory that the command couldn't see is an error that says what it could; as on Linux."""
    mac(
        "os.mkdir(work + '/no')\n"
        "hidden = policy.with_(deny=[work + '/no'])\n"
        "for at, p in ((os.path.dirname(work), policy), (work + '/no', hidden)):\n"
        "    try: nsbox.run(['true'], policy=p, cwd=at)\n"
        "    except nsbox.AccessError as error: assert work in str(error), error\n"
        "    else: raise AssertionError(at)\n"
        "try: nsbox.run(['true'], policy=policy, cwd=work + '/none')\n"
        "except FileNotFoundError as error: assert error.filename == work + '/none'\n"
        "else: raise AssertionError\n"
        "assert nsbox.run(['true'], policy=policy, cwd='/usr').returncode == 0\n"
    )


def test_what_is_left_running(mac: Any) -> None:
    """What the command leaves in its process group is killed when it ends, which closes its pipes; or with kill_on_exit=False goes on."""
    mac(
        "script = 'sleep 600 & echo $!; exec true'\n"
        "pid = int(nsbox.check_output(script, shell=True, policy=policy))\n"
        "def gone(pid):\n"
        "    try: return open(f'/proc/{pid}/stat').read().split()[2] == 'Z'\n"
        "    except OSError: return True\n"
        "while not gone(pid): time.sleep(0.01)\n"
        "p = nsbox.Popen(script, shell=True, policy=policy, kill_on_exit=False, stdout=-1)\n"
        "pid = int(p.stdout.readline()); assert p.wait() == 0 and not gone(pid)\n"
        "os.kill(pid, 9); p.stdout.close()\n"
        "while not gone(pid): time.sleep(0.01)\n"
        "import shutil\n"
        "for name in temporary(): shutil.rmtree(os.path.join(nsbox.probe().temporary, name))\n"
    )


def test_other_faces(mac: Any) -> None:
    """asyncio, time limits, a Sandbox, confined() and a preexec_fn work as they do elsewhere, the Sandbox without a template."""
    mac(
        "import asyncio, contextlib\n"
        "async def main():\n"
        "    p = await nsbox.asyncio.create_subprocess_exec('sh', '-c', 'echo out; exit 3', stdout=-1, policy=policy)\n"
        "    assert await p.communicate() == (b'out\\n', None) and p.returncode == 3\n"
        "asyncio.run(main())\n"
        "try: nsbox.run(['sleep', '60'], policy=policy, timeout=0.2)\n"
        "except nsbox.TimeoutExpired: pass\n"
        "else: raise AssertionError\n"
        "with nsbox.Sandbox(policy) as box:\n"
        "    assert box.shell('echo $((6*7))').stdout.strip() == '42'\n"
        "    p = box.Popen(['true']); assert p.wait() == 0 and not p.sandbox.is_warm and p.sandbox.backend == 'seatbelt'\n"
        "    for what in (box.session, box.transaction):\n"
        "        try:\n"
        "            with what(): pass\n"
        "        except nsbox.UnavailableError: pass\n"
        "        else: raise AssertionError(what)\n"
        "nsbox.install()\n"
        "with nsbox.confined(policy): assert subprocess.run(['true']).returncode == 0\n"
        "code = 'import os; print(os.environ.get(\"X\"), os.getcwd())'\n"
        "done = nsbox.run(['/usr/bin/python3', '-c', code], policy=policy, preexec_fn=lambda: os.chdir('/usr'), cwd=work, capture_output=True, text=True)\n"
        "assert done.returncode == 0, done\n"
        "assert temporary() == [], temporary()\n"
    )


def test_threads_and_forks(mac: Any) -> None:
    """Threads start commands at the same time, each with a directory of its own; a forked child doesn't use its parent's."""
    mac(
        "seen, lock = [], threading.Lock()\n"
        "def many():\n"
        "    for _ in range(5):\n"
        "        out = nsbox.check_output('echo $TMPDIR; ls -A $TMPDIR; touch $TMPDIR/x', shell=True, policy=policy, text=True)\n"
        "        with lock: seen.append(out)\n"
        "threads = [threading.Thread(target=many) for _ in range(6)]\n"
        "for t in threads: t.start()\n"
        "for t in threads: t.join()\n"
        "assert len(seen) == 30 and all(out.count('\\n') == 1 for out in seen)\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    out = nsbox.check_output('echo $TMPDIR', shell=True, policy=policy, text=True)\n"
        "    os._exit(out in seen)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
    )


def test_command_line(mac: Any) -> None:
    """The command works where it can, and says what only Linux has."""
    mac(
        "def said(*words, status=0):\n"
        "    code = 'import sys; from nsbox._cli import main; sys.exit(main())'\n"
        "    command = [sys.executable, '-I', sys.orig_argv[2], os.path.dirname(os.path.dirname(nsbox.__file__)), code, *words]\n"
        "    done = subprocess.run(command, cwd=work, capture_output=True, text=True)\n"
        "    assert done.returncode == status, (words, done)\n"
        "    return done.stdout + done.stderr\n"
        "assert said('run', '--', 'sh', '-c', 'echo $((6 * 7))') == '42\\n'\n"
        "assert said('run', '--host', '--', 'sh', '-c', 'exit 5', status=5) == ''\n"
        "assert 'limits.memory' in said('run', '--memory', '1G', '--', 'true', status=125)\n"
        "assert 'Darwin has no namespaces' in said('run', '--require', 'isolated', '--', 'true', status=125)\n"
        "assert 'WRITE_0' in said('explain')\n"
        "assert 'only Linux' in said('bwrap', '--ro-bind', '/', '/', 'true', status=1)\n"
        "assert 'only Linux' in said('bwrap', '--version', status=1)\n"
        "said('init'); said('check', 'nsbox.toml')\n"
        "assert said('run', '-p', 'nsbox.toml', '--', 'echo', 'x') == 'x\\n'\n"
        "try: nsbox.rootfs.build(work + '/root', ['sh'])\n"
        "except nsbox.UnavailableError as error: assert 'Linux' in str(error)\n"
        "else: raise AssertionError\n"
    )


def test_hints(mac: Any) -> None:
    """A tool's hints go by what a Mac says: EPERM, for what is outside, for what is read-only, for services."""
    mac(
        "os.mkdir(work + '/ro')\n"
        "box = nsbox.Sandbox(policy.with_(read=[work + '/ro']))\n"
        "for what, kind, word in (('/root/secret', 'outside', work), (work + '/ro/x', 'read-only', 'ro/x'), ('it', 'not-permitted', 'log stream')):\n"
        "    hints = box.shell(f'echo {what}: Operation not permitted >&2; exit 1').why\n"
        "    assert hints and hints[0].kind == kind and word in str(hints[0]), (what, hints)\n"
        "box.close()\n"
    )


def test_questions(mac: Any) -> None:
    """A policy answers where commands may read and write; Sandbox's own ways to files say that they aren't there."""
    mac(
        "os.makedirs(work + '/ro'); os.symlink(work + '/ro', work + '/link')\n"
        "p = policy.with_(read=[work + '/ro'], deny=[work + '/no'])\n"
        "for path, read, write in (('x', 1, 1), ('ro/x', 1, 0), ('link/x', 1, 0), ('no', 0, 0), ('no/x', 0, 0), ('/usr/bin', 1, 0),\n"
        "                          ('/tmp', 0, 0), ('/root/x', 0, 0), ('ro/../x', 1, 1), ('/', 0, 0)):\n"
        "    path = os.path.join(work, path)\n"
        "    assert (p.can_read(path), p.can_write(path)) == (read, write), path\n"
        "assert str(p.resolve(work + '/x')).endswith('/work/x')\n"
        "try: p.resolve('/root/x')\n"
        "except nsbox.AccessError as error: assert work in str(error)\n"
        "else: raise AssertionError\n"
        "try: nsbox.Sandbox(p).read(work + '/x')\n"
        "except nsbox.UnavailableError as error: assert 'Linux' in str(error)\n"
        "else: raise AssertionError\n"
    )
