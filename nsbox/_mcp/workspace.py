"""The Sandbox of a connection: made at the first call, since a client tells its roots only then."""

from __future__ import annotations

from functools import partial

import anyio
import mcp_types as types
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING
from nsbox._handles import waiting
from nsbox._mcp.log import say
from nsbox._mcp.questions import can_ask
from nsbox._mcp.roots import directories, narrowed
from nsbox.async_sandbox import AsyncSandbox

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from nsbox._mcp.log import Log
    from nsbox._mcp.questions import Questions
    from nsbox._mcp.wishes import Wishes
    from nsbox._network.events import NetworkEvent
    from nsbox._policy.policy import Policy

ROOTS_KEY = "roots"  # of the question to a client since 2026-07-28
_PATIENCE = 60.0  # seconds that a client may think about its roots


class Workspace:
    """The Sandbox for all calls of one client."""

    def __init__(
        self, wishes: Wishes, log: Log, questions: Questions, on_network: Callable[[NetworkEvent], object]
    ) -> None:
        """Make nothing yet.

        on_network: as for Sandbox.
        """
        self._wishes, self._log, self._questions, self._on_network = wishes, log, questions, on_network
        self._box: AsyncSandbox | None = None
        self._lock = anyio.Lock()
        self._has_asked = False

    def forget_roots(self) -> None:
        """Ask for the client's roots again at the next call."""
        self._has_asked = False

    def needs_roots(self, session: Any, responses: Any) -> bool:
        """Return whether a client since 2026-07-28 has to be asked for its roots, in the answer to its call."""
        return (
            session.protocol_version in MODERN_PROTOCOL_VERSIONS
            and self._wants_roots(session)
            and not isinstance((responses or {}).get(ROOTS_KEY), types.ListRootsResult)
        )

    def _wants_roots(self, session: Any) -> bool:
        capabilities = session.client_capabilities
        has_roots = capabilities is not None and capabilities.roots is not None
        return has_roots and not self._has_asked and self._wishes.roots != "ignore"

    async def box(self, session: Any, responses: Any) -> AsyncSandbox:
        """Return the Sandbox for a call.

        session: the call's.
        responses: what the client has answered, by key.

        Raises PolicyError if the client's roots leave nothing, and what starting a Sandbox raises.
        """
        async with self._lock:
            if self._box is None or self._wants_roots(session):
                await self._make(session, responses)
            assert self._box is not None
            return self._box

    async def _make(self, session: Any, responses: Any) -> None:
        policy = self._wishes.policy
        wants = self._wants_roots(session)
        if wants:
            uris = await self._uris(session, responses)
            policy, problems = await waiting.in_thread(partial(self._within, uris))
            for problem in problems:
                say(problem)
                await self._log.tell("warning", problem)
        if self._box is not None:
            await waiting.in_thread(partial(self._box.sandbox.update, policy))
        else:
            asks = self._wishes.asks_network and can_ask(session.client_capabilities)
            box = AsyncSandbox(policy, on_connect=self._questions.decide if asks else None, on_network=self._on_network)
            try:
                await box.start()
            except BaseException:
                with anyio.CancelScope(shield=True):
                    await box.close()
                raise
            self._box = box
        self._has_asked = self._has_asked or wants

    async def _uris(self, session: Any, responses: Any) -> list[str]:
        if session.protocol_version in MODERN_PROTOCOL_VERSIONS:
            found = responses[ROOTS_KEY]
        else:
            try:
                found = await session.send_request(types.ListRootsRequest(), types.ListRootsResult, _PATIENCE)
            except (MCPError, ValueError) as error:  # also an answer of the wrong form
                raise PolicyError("roots", f"the client has roots, but doesn't list them: {error}") from None
        return [str(root.uri) for root in found.roots]

    def _within(self, uris: Sequence[str]) -> tuple[Policy, list[str]]:
        """Return the policy for roots, and a sentence for each that is ignored."""
        policy = self._wishes.policy
        if not uris:
            return policy, []
        roots, problems = directories(uris, policy.write)
        if not roots:
            raise PolicyError("roots", f"no root of the client can be a workspace: {'; '.join(problems)}")
        if self._wishes.roots == "allow":
            return self._wishes.policy_for(roots), problems
        policy, outside = narrowed(policy, roots)
        return policy, [*problems, *(f"the root {path} is ignored: the policy doesn't allow it" for path in outside)]

    async def close(self) -> None:
        """End all that runs, and release what is kept."""
        if self._box is not None:
            await self._box.close()
