"""A policy whose commands may have several ids, for tests of sandboxes, sessions and tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import nsbox
from nsbox import Policy, UnavailableError


def with_all_ids(workspace: Path, **fields: Any) -> Policy:
    """Return a policy with all ids that this user can map; where there is just one, check that it says so, and skip."""
    host = nsbox.probe()
    if not host.can_set_ids and not (host.map_programs and host.subuids and host.subgids):
        with pytest.raises(UnavailableError, match="subordinate ids"):
            nsbox.explain(Policy.workspace(workspace, ids="full"))
        pytest.skip("no capabilities and no subordinate ids; that it says so was checked")
    return Policy.workspace(workspace, ids="full", **fields)
