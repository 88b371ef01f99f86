"""The client: it makes sessions, finds them again, and removes what they leave."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from nsbox import Policy, in_thread
from nsbox.integrations._extras import without
from nsbox.integrations.openai_agents.session import NsboxSandboxSession, NsboxSandboxSessionState

try:
    from agents.sandbox import Manifest
    from agents.sandbox.session import Instrumentation, SandboxSession, SandboxSessionState
    from agents.sandbox.session.sandbox_client import BaseSandboxClient, BaseSandboxClientOptions
    from agents.sandbox.snapshot import resolve_snapshot
except ImportError as error:
    raise without("openai-agents", error) from error

if TYPE_CHECKING:
    from agents.sandbox.session import Dependencies

_DEFAULT_ROOT = Manifest.model_fields["root"].default


class NsboxSandboxClientOptions(BaseSandboxClientOptions):
    """What a session may have besides its manifest.

    exposed_ports: ports of servers inside that the host may reach: session.resolve_exposed_port(port) says where.
    """

    type: Literal["nsbox"] = "nsbox"
    exposed_ports: tuple[int, ...] = ()


def workspace_policy(root: Path) -> Policy:
    """Return the default policy of sessions: Policy.workspace() of the root, which follows links that stay in it."""
    return Policy.workspace(root, symlinks="beneath")


class NsboxSandboxClient(BaseSandboxClient):
    """Makes sandbox sessions for the Agents SDK on this machine.

    A session's workspace is the manifest's root: a directory of the host. If the manifest names none, it is a temporary
    directory, which delete() removes. Commands and file tools work in a task, so that what they write anywhere, in /usr
    or /tmp as well, is there for the next command. When the session is shut down, the changes to the workspace are
    committed to the directory, and the others are dropped.
    """

    backend_id = "nsbox"
    supports_default_options = True

    def __init__(
        self,
        policy: Callable[[Path], Policy] = workspace_policy,
        *,
        overlay: bool = True,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
    ) -> None:
        """Hold the policy; nothing happens before a session starts.

        policy: a function that returns the policy of a session whose workspace is this directory. Default:
            nsbox.Policy.workspace(), with symlinks="beneath".
        overlay: False: commands write to the workspace itself, and can't write to system directories; /tmp and the home
            still last as long as the session. Default: True.
        instrumentation, dependencies: as for the SDK's own clients. Default: none.

        Raises TypeError for a policy that isn't a function.
        """
        if not callable(policy):
            raise TypeError(f"policy is {policy!r:.60}, must be a function that returns a Policy for a workspace")
        self._policy, self._overlay = policy, overlay
        self._instrumentation = instrumentation if instrumentation is not None else Instrumentation()
        self._dependencies = dependencies
        self._live: weakref.WeakValueDictionary[uuid.UUID, NsboxSandboxSession] = weakref.WeakValueDictionary()

    async def create(self, *, snapshot: Any = None, manifest: Any = None, options: Any = None) -> SandboxSession:
        """Return a session, which hasn't started yet.

        snapshot, manifest: as for the SDK's own clients. options: NsboxSandboxClientOptions. Default: none.

        Raises ValueError for users, groups, and grants with a host_path, which nsbox doesn't support.
        """
        manifest = manifest if manifest is not None else Manifest()
        _check(manifest)
        self._validate_manifest_for_create(manifest)
        is_owned = manifest.root == _DEFAULT_ROOT
        if is_owned:
            root = tempfile.mkdtemp(prefix="nsbox-session-")
            manifest = manifest.model_copy(update={"root": root}, deep=True)
        number = uuid.uuid4()
        state = NsboxSandboxSessionState(
            session_id=number,
            manifest=manifest,
            snapshot=resolve_snapshot(snapshot, str(number)),
            workspace_root_owned=is_owned,
            exposed_ports=() if options is None else options.exposed_ports,
        )
        return self._session(state)

    def _session(self, state: NsboxSandboxSessionState) -> SandboxSession:
        inner = NsboxSandboxSession(state, self._policy, overlay=self._overlay)
        self._live[state.session_id] = inner
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return the session of a state: the running one if this client made it, or else one in the same workspace.

        If the workspace is gone, start() restores it from the snapshot, if there is one.

        Raises TypeError for another client's state.
        """
        if not isinstance(state, NsboxSandboxSessionState):
            raise TypeError(f"{type(self).__name__}.resume expects an NsboxSandboxSessionState")
        state.assert_path_grants_rebound()
        _check(state.manifest)
        live = self._live.get(state.session_id)
        if live is not None and await live.running():
            live._set_start_state_preserved(True, system=True)
            return self._wrap_session(live, instrumentation=self._instrumentation)
        session = self._session(state)
        session._inner._set_start_state_preserved(Path(state.manifest.root).is_dir(), system=False)
        return session

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End what is left of a session, and remove its workspace if that was a temporary one.

        Raises TypeError for another client's session.
        """
        inner = session._inner
        if not isinstance(inner, NsboxSandboxSession):
            raise TypeError(f"{type(self).__name__}.delete expects an NsboxSandboxSession")
        await inner.discard()
        if inner.state.workspace_root_owned:
            await in_thread(lambda: shutil.rmtree(inner.state.manifest.root, ignore_errors=True))
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Return a state from the mapping that serialize_session_state() has made."""
        return self._deserialize_session_state_payload(payload, NsboxSandboxSessionState)


def _check(manifest: Any) -> None:
    if manifest.users or manifest.groups:
        raise ValueError("nsbox has no users and groups of a manifest: commands run as one user")
    for grant in manifest.extra_path_grants:
        if grant.host_path is not None:
            raise ValueError(f"nsbox shows {grant.path!r} at its own path: leave out host_path")
