"""What the plugin for pytest, _nsbox_pytest.py, does once it is asked: contained tests, and contained workers."""

from __future__ import annotations

try:
    import pytest as pytest
except ImportError as error:
    from nsbox.integrations._extras import without

    raise without("pytest", error) from None
