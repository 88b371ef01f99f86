"""What the tests of wishes and plans share."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, settings

from nsbox import PolicyError

calm = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # no test here depends on time


def refused(field: str, make: Callable[[], object]) -> PolicyError:
    """Return the PolicyError that make() must raise, which must name exactly this field."""
    with pytest.raises(PolicyError) as caught:
        make()
    error = caught.value
    assert error.field == field, str(error)
    assert error.problem
    assert str(error) == f"{field}: {error.problem}"
    return error


def label(value: object) -> str:
    """Return a short name in ASCII for any parameter."""
    return repr(value)[:30].encode("ascii", "backslashreplace").decode()
