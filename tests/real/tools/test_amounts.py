"""Default amounts, and what each record says that was used."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import nsbox
from nsbox import Limits, Policy, PolicyError, Sandbox
from nsbox._base.frozen import replace

BEST = {"limits.processes"}  # of the kernel's root, without a cgroup


def test_sensible_limits_disturb_nobody(workspace: Path) -> None:
    """Ordinary work goes on under them, and a file that grows without end is stopped."""
    policy = Policy.workspace(workspace, limits=Limits.sensible(), degrade=BEST)
    with Sandbox(policy) as box:
        assert box.shell("seq 1000 | sort | tail -1; head -c 1M /dev/zero > f").stdout == "999\n"
        assert box.shell("truncate -s 15G f").returncode == 0
        assert box.shell("truncate -s 17G f").returncode != 0
        assert box.shell("ulimit -n").stdout.strip() != "unlimited"
    assert Limits.sensible() == Limits(processes=4096, file_size="16G", open_files=65536, core_size=0)


def test_sensible_limits_with_other_amounts() -> None:
    """By name, also None; a wrong amount or name is an error."""
    assert Limits.sensible(processes=200, total_memory="1G", core_size=None) == Limits(
        processes=200, file_size="16G", open_files=65536, total_memory="1G"
    )
    with pytest.raises(PolicyError, match="file_size"):
        Limits.sensible(file_size="1 GB")
    with pytest.raises(TypeError, match="mem"):
        Limits.sensible(mem="1G")  # type: ignore[call-arg]


def test_what_is_lost_is_known_before(workspace: Path) -> None:
    """plan() says it as a value, for this machine and for another, and starts nothing."""
    names = {"limits.total_memory", "network"}
    policy = Policy.workspace(workspace, limits=Limits(total_memory="1G"), degrade=names)
    without = replace(nsbox.probe(), cgroup="")
    assert nsbox.plan(policy, without).lost == {"limits.total_memory"}
    assert nsbox.plan(policy.with_(limits=Limits()), without).lost == frozenset()
    with nsbox.Popen(["true"], policy=policy) as process:
        pass
    assert process.sandbox is not None and nsbox.plan(policy).lost == process.sandbox.lost


def test_each_record_says_what_was_used(workspace: Path) -> None:
    """Processor time, memory and cause are in each ToolResult, of a Sandbox and of a session, also as JSON."""
    with Sandbox(Policy.workspace(workspace)) as box, box.session() as session:
        for place in (box, session):
            done = place.shell("python3 -c 'x = bytearray(64 << 20)' || head -c 64M /dev/zero | sort > /dev/null")
            assert done.usage is not None and done.usage.cause == "exit"
            told = json.loads(done.as_json())["usage"]
            assert told["cause"] == "exit" and told["max_rss"] > 0 and told["cpu"] >= 0
        late = box.shell("sleep 1000", timeout=0.2)
        assert late.usage is not None and late.usage.cause == "timeout"
        killed = box.exec("sh", ["-c", "kill -9 $$"])
        assert killed.usage is not None and killed.usage.cause == "signal"


def test_a_program_that_is_not_there(workspace: Path) -> None:
    """What wasn't started has used nothing."""
    with Sandbox(Policy.workspace(workspace)) as box:
        done = box.exec("no-such-program")
        assert (done.returncode, done.usage, done.as_dict()["usage"]) == (127, None, None)


def test_a_limit_is_the_cause(workspace: Path) -> None:
    """A command that a limit has ended says so."""
    with Sandbox(Policy.workspace(workspace, limits=nsbox.Limits(cpu_seconds=1))) as box:
        done = box.shell("exec sh -c 'while :; do :; done'")
        assert done.usage is not None and done.usage.cause == "limit"
