"""The client's user decides about hosts that aren't in the list, if the operator says so and the client can ask."""

from __future__ import annotations

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.exceptions import MCPError
from nsbox_mcp_clients import LONG, Serve, legacy, modern

from nsbox._mcp.questions import _verdict, can_ask

# Nothing has this name: a connection that is allowed fails, and one that isn't is refused.
LINE = "exec 3<>/dev/tcp/{}.invalid/8080"


def answering(*results: types.ElicitResult | Exception) -> tuple[dict[str, Any], list[Any]]:
    """A client whose user gives these answers in turn, and what it was asked."""
    asked: list[Any] = []
    rest = list(results)

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        asked.append(params)
        answer = rest.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return {"elicitation_callback": elicit}, asked


def says(answer: str) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"answer": answer})


async def counts(client: Any, name: str = "files") -> tuple[int, int]:
    """Return how many connections of a command were refused, and how many were allowed and failed."""
    done = await client.call_tool("shell", {"command": LINE.format(name), "timeout": LONG})
    network = done.structured_content["network"]
    return network["refused"], network["failed"]


def test_verdicts() -> None:
    """Only a clear yes is one."""
    result = types.ElicitResult
    assert [_verdict(says(word)) for word in ("once", "always", "no", "never", "yes")] == [
        True,
        "always",
        False,
        "never",
        False,
    ]
    assert _verdict(result(action="decline")) is _verdict(result(action="cancel")) is False
    assert _verdict(result(action="accept")) is _verdict(result(action="decline", content={"answer": "once"})) is False
    assert _verdict(types.ListRootsResult(roots=[])) is _verdict(None) is False
    form, url = types.FormElicitationCapability(), types.UrlElicitationCapability()
    has = types.ElicitationCapability
    wishes = [None, has(), has(form=form), has(url=url), has(form=form, url=url)]
    assert [can_ask(types.ClientCapabilities(elicitation=wish)) for wish in wishes] == [False, True, True, False, True]
    assert not can_ask(None)


def test_a_yes_and_a_no(connect: Any, serve: Serve) -> None:
    """The command waits for each answer; "always" holds for later commands, "once" doesn't."""
    options, asked = answering(says("once"), says("no"), says("always"))

    async def main() -> list[Any]:
        async with connect(serve("--ask-network"), **options) as client:
            return [await counts(client) for _ in range(4)]

    once, no, always, later = asyncio.run(main())
    assert once[0] == 0 and once[1] > 0
    assert no[0] > 0 and no[1] == 0
    assert always[0] == later[0] == 0 and always[1] > 0 and later[1] > 0
    assert len(asked) == 3
    assert "A command in the sandbox wants to connect to files.invalid:8080" in asked[0].message
    assert asked[0].requested_schema["properties"]["answer"]["enum"] == ["no", "once", "always", "never"]


@pytest.mark.parametrize("answer", ["decline", "cancel", "accept", "error"])
def test_whatever_is_no_yes(connect: Any, serve: Serve, answer: Any) -> None:
    """A user who declines, closes the form or fills in nothing, and a client that fails: refused."""
    result = RuntimeError("no window") if answer == "error" else types.ElicitResult(action=answer)
    options, asked = answering(result)

    async def main() -> tuple[int, int] | None:
        async with connect(serve("--ask-network"), **options) as client:
            try:
                return await counts(client)
            except (MCPError, ExceptionGroup, RuntimeError):  # the client ends its own call then
                return None

    found = asyncio.run(main())
    assert found is None or (found[0] > 0 and found[1] == 0)
    assert len(asked) == 1


def test_without_the_operators_word(connect: Any, serve: Serve) -> None:
    """The control of the client's word: without --ask-network its user isn't asked, and nothing is allowed."""
    options, asked = answering(says("always"))

    async def main() -> tuple[int, int]:
        async with connect(serve("--allow-net", "other.invalid:1"), **options) as client:
            return await counts(client)

    refused, failed = asyncio.run(main())
    assert refused > 0 and failed == 0 and asked == []


def test_a_client_that_cannot_ask(connect: Any, serve: Serve) -> None:
    """It gets what the policy says, and a log notification of what was refused."""
    told: list[Any] = []

    async def on_log(params: types.LoggingMessageNotificationParams) -> None:
        told.append((params.level, params.data))

    async def main() -> tuple[int, int]:
        server = serve("--ask-network", "--allow-net", "other.invalid:1")
        options: dict[str, Any] = {"logging_callback": on_log}
        if connect is modern:
            options["log_level"] = "info"
        async with connect(server, **options) as client:
            found = await counts(client)
            end = time.monotonic() + LONG
            while not told and connect is legacy and time.monotonic() < end:
                await asyncio.sleep(0.02)
            return found

    refused, failed = asyncio.run(main())
    assert refused > 0 and failed == 0
    if connect is legacy:  # since 2026-07-28 only a call that runs can carry messages, and this one may have ended
        assert told[0][0] == "warning" and "files.invalid" in told[0][1]["message"]
        assert told[0][1]["verdict"] == "refused"


def test_two_questions_of_one_command(connect: Any, serve: Serve) -> None:
    """Each host is asked about, in the same call."""
    options, asked = answering(says("no"), says("no"))

    async def main() -> Any:
        async with connect(serve("--ask-network"), **options) as client:
            line = f"{LINE.format('one')} & {LINE.format('two')} & wait"
            return await client.call_tool("shell", {"command": line, "timeout": LONG})

    done = asyncio.run(main())
    assert done.structured_content["network"]["refused"] >= 2
    assert {params.message.split()[9] for params in asked} == {"one.invalid:8080,", "two.invalid:8080,"}


def test_an_answer_that_never_comes(serve: Serve, workspace: Path) -> None:
    """The client leaves while its user thinks: the command ends with the server."""
    is_asked = threading.Event()

    async def elicit(context: Any, params: Any) -> types.ElicitResult:
        is_asked.set()
        await asyncio.sleep(LONG)
        return says("always")

    async def main(connect: Any) -> None:
        is_asked.clear()
        async with connect(serve("--ask-network"), elicitation_callback=elicit) as client:
            call = asyncio.create_task(client.call_tool("shell", {"command": LINE.format("x"), "timeout": 3000}))
            while not is_asked.is_set():
                await asyncio.sleep(0.02)
            call.cancel()
            await asyncio.wait({call})

    for connect in (legacy, modern):
        began = time.monotonic()
        asyncio.run(main(connect))
        assert time.monotonic() - began < LONG


def test_a_state_that_is_made_up(serve: Serve) -> None:
    """No call waits with it."""

    async def main() -> None:
        async with modern(serve("--ask-network")) as client:
            with pytest.raises(MCPError, match="no waiting call has this requestState"):
                await client.session.call_tool("shell", {"command": "true"}, request_state="x")

    asyncio.run(main())
