"""install() and confined() where it would be easy to contain nothing without a word; see test_confine.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

Child = Callable[..., Any]


def test_no_decorator(child: Child) -> None:
    """As a decorator of a coroutine or generator function it would be over before their code runs: it is none."""
    code = """
def decorate():
    @nsbox.confined(policy)
    async def work(): pass
try:
    decorate()
except TypeError as error:
    report(str(error))
"""
    assert "not callable" in child(code)


def test_one_block_object_twice(child: Child) -> None:
    """The same object may be entered again, also within itself; the policy goes with the last exit."""
    code = """
block = nsbox.confined(policy)
with block:
    seen = [where()]
    with block:
        seen += [where()]
    seen += [where()]
seen += [where()]
with block:
    seen += [where()]
report([*seen, where()])
"""
    assert child(code) == ["in", "in", "in", "out", "in", "out"]


def test_kill_on_exit_needs_a_policy(child: Child) -> None:
    """Where nothing contains the command its background processes can't be killed: an error, not a wish ignored."""
    code = """
nsbox.install()
try:
    subprocess.Popen(["true"], kill_on_exit=True)
except ValueError as error:
    seen = [str(error)]
seen += [subprocess.run(["true"], kill_on_exit=False).returncode]
seen += [subprocess.run(["true"], kill_on_exit=True, policy=policy).returncode]
report(seen)
"""
    assert child(code) == ["kill_on_exit=True needs a policy", 0, 0]


def test_a_stand_in_of_a_test_stays(child: Child) -> None:
    """If a test has replaced subprocess.Popen, its replacement is what is called in a block too."""
    code = """
from unittest import mock
nsbox.Popen  # loaded
with mock.patch("subprocess.Popen") as stand_in, nsbox.confined(policy):
    subprocess.Popen(["true"])
    seen = [stand_in.call_count]
with nsbox.confined(policy):
    seen += [where()]
report(seen)
"""
    assert child(code) == [1, "in"]


def test_nsbox_popen_is_an_instance(child: Child) -> None:
    """After install() what nsbox.Popen makes is still an instance of subprocess.Popen, and of the original."""
    code = """
original = subprocess.Popen
nsbox.install()
with nsbox.Popen(["true"], policy=policy) as p, subprocess.Popen(["true"]) as q:
    pass
report([isinstance(one, kind) for one in (p, q) for kind in (subprocess.Popen, original)]
       + [issubclass(nsbox.Popen, subprocess.Popen)])
"""
    assert child(code) == [True] * 5


@pytest.mark.parametrize("how", ["exec", "shell"])
def test_uvloop(child: Child, how: str) -> None:
    """uvloop's own functions, which start without Python's knowledge, are refused in a block; nsbox's work there."""
    pytest.importorskip("uvloop")
    arguments = {"exec": "'readlink', '/proc/self/ns/pid'", "shell": "'readlink /proc/self/ns/pid'"}[how]
    code = f"""
import uvloop
async def ask(module):
    process = await module.create_subprocess_{how}({arguments}, stdout=subprocess.PIPE)
    return said((await process.communicate())[0])
async def main():
    seen = [await ask(asyncio)]
    with nsbox.confined(policy):
        try:
            await ask(asyncio)
        except nsbox.NsboxError as error:
            seen += ["nsbox.asyncio" in str(error)]
        seen += [await ask(nsbox.asyncio)]
    report([*seen, await ask(asyncio)])
with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
    runner.run(main())
"""
    assert child(code) == ["out", True, "in", "out"]
