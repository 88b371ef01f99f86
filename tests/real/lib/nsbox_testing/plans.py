"""Plans as the C core sees them."""

from __future__ import annotations

from nsbox._core.abi import ffi, lib


def check(plan: bytes) -> tuple[int, int]:
    """Return 0 or -EINVAL, and the index of the first malformed op (-1: the header), as a spawn finds out first."""
    bad = ffi.new("int32_t *")
    ret = lib.nsbox_plan_check(ffi.from_buffer("uint8_t[]", plan), len(plan), bad)
    return ret, bad[0]
