"""More arguments than the kernel takes: the record says that, and not that there is no shell."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import nsbox
from nsbox import Policy, Sandbox
from nsbox._calls.record import ToolResult

TEXT = "x" * (1 << 22)  # more than one argument may have on any machine


@pytest.fixture
def box(policy: Policy) -> Iterator[Sandbox]:
    with Sandbox(policy) as made:
        yield made


def is_told(result: ToolResult | None) -> bool:
    assert result is not None
    assert result.cause == "not-started"
    assert result.returncode == 126
    (hint,) = result.why
    return (
        hint.kind == "limit"
        and "too long for the kernel" in hint.message
        and "write long text to a file" in hint.message
    )


def test_a_long_command(box: Sandbox) -> None:
    """In each face; none of the shells is tried after the first."""
    line = f"echo {TEXT}"
    assert is_told(box.shell(line))
    assert f"the longest argument has {len(line)} bytes" in box.shell(line).why[0].message
    assert is_told(box.exec("echo", [TEXT]))
    job = box.background(line)
    job.wait(timeout=60)
    assert is_told(job.result)
    assert is_told(list(box.stream(line))[-1].result)
    with box.session() as session:
        assert is_told(session.shell(line))
    answer = nsbox.call_tool(box, "shell", {"command": line})
    assert [hint["kind"] for hint in answer["why"]] == ["limit"]


def test_many_arguments_and_long_variables(box: Sandbox) -> None:
    for done in (box.exec("echo", ["x" * 1000] * 10_000), box.shell("true", env={"LONG": TEXT})):
        assert is_told(done)
        assert "no argument alone is too long" in done.why[0].message
    assert box.exec("cat", input=TEXT).stdout_bytes == len(TEXT)  # what the hint says works


def test_a_missing_shell_is_still_told(policy: Policy) -> None:
    with Sandbox(policy) as box:
        assert box.shell("true", shell_path="/no/sh").why[0].kind == "missing-program"
