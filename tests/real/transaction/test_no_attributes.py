"""Python without functions for extended attributes, as CPython before 3.11.3 is with musl."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from nsbox_testing.running import in_fork

from nsbox import Sandbox, UnavailableError

_NAMES = ("getxattr", "setxattr", "listxattr", "removexattr")


def test_what_needs_attributes(box: Sandbox, filled: Path, store: Path) -> None:
    """What could lose attributes is refused, with a remedy; what needs none works. Control: with them, all works."""

    def use() -> None:
        with box.transaction(dir=store) as tx:
            tx.run(["true"], check=True)
        with box.task(dir=store) as task:
            task.run(["true"], check=True)
        assert box.python(overlay=True).run("1", check=True).value == 1
        box.write("new", "1")
        box.write("new", "2")

    def child() -> None:
        for name in _NAMES:
            delattr(os, name)
        refused = (
            lambda: box.transaction(dir=store),
            lambda: box.task(dir=store),
            lambda: box.python(overlay=True).run("1"),
        )
        for call in refused:
            with pytest.raises(UnavailableError, match=r"no os.listxattr.*3\.11\.3"):
                call()
        with pytest.raises(OSError, match=r"3\.11\.3") as raised:
            box.write("new", "3")
        assert raised.value.errno == errno.ENOSYS
        assert (filled / "new").read_text() == "2"
        box.run(["true"], check=True)
        box.write("newer", "3")

    in_fork(use)
    in_fork(child)
