"""Background jobs: their output by position, their end, their stdin, their list."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from nsbox_testing.verdicts import LONG

import nsbox
from nsbox import Policy, Sandbox
from nsbox._handles.job import Tail
from nsbox._handles.worker import Workers


def test_output_by_position(box: Sandbox) -> None:
    """Each call goes on where the last one ended; both streams in the order in which they came."""
    job = box.background("echo one; read x; echo $x >&2")
    first = job.output(wait=LONG)
    assert (first.text, first.left_out, first.is_over) == ("one\n", 0, False)
    assert job.output(first.next).text == ""
    job.send("two\n")
    second = job.output(first.next, wait=LONG)
    assert second.text == "two\n"
    result = job.wait(LONG)
    assert (result.returncode, result.stdout, result.stderr) == (0, "one\n", "two\n")
    assert job.output() == nsbox.JobOutput("one\ntwo\n", 8, 0, is_over=True)
    assert job.output(2, max_bytes=4).as_dict() == {"text": "e\ntw", "next": 6, "left_out": 0, "is_over": False}
    assert job.kill() is result
    assert not job.is_running


def test_by_number(box: Sandbox) -> None:
    """What a model's call names; an error says which there are."""
    with pytest.raises(LookupError, match="there is no job 1; none was started"):
        box.job(1)
    job = box.background("cat")
    number = nsbox.call_tool(box, "background", {"command": "true"})["job"]
    assert box.job(job.id) is job
    assert box.job(number) is box.jobs()[1]
    with pytest.raises(LookupError, match="there is no job 7; the jobs are 1, 2"):
        box.job(7)
    assert nsbox.call_tool(box, "job_kill", {"job": 7}) == {"error": "there is no job 7; the jobs are 1, 2"}
    assert nsbox.call_tool(box, "job_kill", {"job": job.id})["cause"] == "cancelled"


def test_an_interrupt_before_the_start(box: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the making of a call and its start, there is nothing that could be left open."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    box.shell("true")
    before = sorted(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(Workers, "start", interrupted)
        for start in (box.background, box.stream):
            with pytest.raises(KeyboardInterrupt) as caught:
                start("cat", open_stdin=True)
            kept = caught.value.__traceback__  # and so the frames, and the call in one of them
            assert kept is not None
            assert sorted(os.listdir("/proc/self/fd")) == before
    job = box.background("cat")
    job.send("x")
    job.send_eof()
    assert job.wait(LONG).stdout == "x"


def test_what_is_kept(box: Sandbox) -> None:
    """Only the end of much output; what is missing is counted."""
    job = box.background("seq 100000; echo end", max_output=1000)
    size = len("".join(f"{i}\n" for i in range(1, 100001))) + 4
    job.wait(LONG)
    output = job.output()
    assert output.text.endswith("\n100000\nend\n")
    assert (len(output.text), output.next, output.left_out) == (1000, size, size - 1000)


def test_kill(box: Sandbox) -> None:
    """It ends with what it has started; at once if asked."""
    job = box.background("trap '' TERM; echo; sleep 1000 & while :; do wait; done", grace=0.2)
    job.output(wait=LONG)
    result = job.kill()
    assert (result.cause, result.ended_by) == ("cancelled", "SIGKILL")
    job = box.background("echo; sleep 1000", grace=500)
    job.output(wait=LONG)
    assert job.kill(at_once=True).ended_by == "SIGKILL"


def test_wait_with_a_limit(box: Sandbox) -> None:
    """After it, the job goes on."""
    job = box.background("sleep 1000")
    with pytest.raises(subprocess.TimeoutExpired):
        job.wait(0.05)
    assert job.is_running
    assert job.result is None
    job.kill()


def test_list(box: Sandbox) -> None:
    """All that run, and those that have ended."""
    first, second = box.background("sleep 1000"), box.background(["true"])
    second.wait(LONG)
    assert [(job.id, job.is_running) for job in box.jobs()] == [(1, True), (2, False)]
    assert repr(first) == "<nsbox.Job 1 runs: 'sleep 1000'>"
    assert repr(second) == "<nsbox.Job 2 has ended: ['true']>"
    assert isinstance(first.pid, int)
    first.kill()


def test_they_end_with_their_sandbox(policy: Policy) -> None:
    """And with a session."""
    with Sandbox(policy) as box:
        outer = box.background("sleep 1000")
        with box.session() as session:
            inner = session.background("sleep 1000")
        assert inner.wait(LONG).cause == "cancelled"
        assert outer.is_running
    assert outer.result is not None
    assert outer.result.cause == "cancelled"


def test_stdin(box: Sandbox) -> None:
    """It is open, unless there is input."""
    job = box.background("cat")
    job.send("x")
    job.send_eof()
    assert job.wait(LONG).stdout == "x"
    job = box.background("cat", input="y")
    assert job.wait(LONG).stdout == "y"
    with pytest.raises(ValueError, match="stdin isn't open"):
        job.send("z")
    with pytest.raises(TypeError, match="data is 5, must be a str or bytes"):
        job.send(5)  # type: ignore[arg-type]
    job = box.background("read x; echo $x", pty=True)
    job.send("typed\n")
    assert "typed" in job.wait(LONG).stdout


def test_what_makes_no_sense(box: Sandbox) -> None:
    """Positions and amounts that there can't be."""
    job = box.background("true")
    for since in (-1, True, "0", 1.5):
        with pytest.raises(ValueError, match="since is"):
            job.output(since)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_bytes is"):
        job.output(max_bytes=0)
    job.wait(LONG)
    assert job.output(10**9) == nsbox.JobOutput("", 0, 0, is_over=True)
    assert "as a list" in str(box.exec("ls -l").why[0])
    with pytest.raises(nsbox.AccessError):
        box.background("true", cwd="/nothing/there")


def test_many(policy: Policy) -> None:
    """At once: each ends with its own output, or the start says which limit was reached. No descriptor is left."""
    count = 200 if os.environ.get("NSBOX_THOROUGH") else 40
    before = len(os.listdir("/proc/self/fd"))
    with Sandbox(policy) as box:
        jobs = [box.background(f"echo {i}; sleep 1000") for i in range(count)]
        for i, job in enumerate(jobs):
            assert job.output(wait=LONG).text == f"{i}\n"
    assert {job.result.cause for job in jobs if job.result} == {"cancelled"}
    assert len(os.listdir("/proc/self/fd")) <= before + 2


def test_no_descriptor_is_free(policy: Policy) -> None:
    """The error says so; those that run go on, and nothing is left behind."""
    code = (
        "import nsbox, resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (80, 80))\n"
        "with nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1])) as box:\n"
        "    jobs = []\n"
        "    try:\n"
        "        for _ in range(100): jobs.append(box.background('echo; sleep 1000'))\n"
        "    except OSError as error:\n"
        "        print(type(error).__name__, error.errno)\n"
        "    assert all(job.is_running for job in jobs), [(job.result, job._worker.error) for job in jobs if not job.is_running]\n"
        "    print(len(jobs) > 3)\n"
        "print({job.result.cause for job in jobs})\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(policy.workdir)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[1:] == ["True", "{'cancelled'}"], done.stdout
    assert done.stdout.splitlines()[0].endswith(" 24")


def test_the_end_of_the_interpreter(policy: Policy) -> None:
    """A program that ends without closing anything isn't held up, and nothing of the job is left."""
    code = (
        "import nsbox, sys\n"
        "box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1])).start()\n"
        "job = box.background('echo; sleep 1000')\n"
        "job.output(wait=60)\n"
        "print(job.pid)\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", code, str(policy.workdir)],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    end = time.monotonic() + LONG
    while os.path.exists(f"/proc/{int(done.stdout)}"):  # the kernel kills it when its pid 1 notices
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_forked_copy(box: Sandbox) -> None:
    """It has none of the jobs, and says so."""
    job = box.background("sleep 1000")
    pid = os.fork()
    if pid == 0:
        try:
            job.wait()
        except ValueError:
            os._exit(0 if box.jobs() == [] else 2)
        os._exit(1)
    assert os.waitpid(pid, 0)[1] == 0
    job.kill()


def test_the_tail_counts() -> None:
    """Positions hold whatever was dropped; a cut within a character moves to the next one."""
    tail = Tail(10)
    data = "äöüß€😀".encode() * 20
    for i in range(0, len(data), 7):
        tail.put("stdout", data[i : i + 7])
    for position in range(len(data)):
        found, following, left_out = tail.since(position, 1000)
        assert following == len(data)
        assert data[position + left_out :] == found
        assert "\ufffd" not in found.decode("utf-8", "replace") or left_out == 0
