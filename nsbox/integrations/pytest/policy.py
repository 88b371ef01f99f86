"""The policy for tests: from a file, or with the root directory as the workspace."""

from __future__ import annotations

import os

import pytest

from nsbox import NsboxError, Policy


def policy_file(config: pytest.Config) -> tuple[str | None, str | None]:
    """Return the path of the policy's file, None if there is none, and the table in it. Raises UsageError."""
    given = config.option.nsbox_policy
    path = given and os.path.join(str(config.invocation_params.dir), given)
    if not path and (own := config.getini("nsbox_policy")):
        path = os.path.join(str(config.rootpath), str(own))
    section = str(config.getini("nsbox_section") or "") or None
    if section and not path:
        raise pytest.UsageError("nsbox_section names a table, but nsbox_policy names no file")
    return path or None, section


def policy_of(config: pytest.Config) -> Policy:
    """Return the policy; raises UsageError, with everything that is wrong with its file."""
    path, section = policy_file(config)
    try:
        if path is None:
            return Policy.workspace(config.rootpath)
        return Policy.load(path, section=section, workspace=config.rootpath)
    except (NsboxError, OSError) as error:
        raise pytest.UsageError(f"the policy for tests in sandboxes: {error}") from error
