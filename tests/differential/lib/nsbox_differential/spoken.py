"""How ops are said to bwrap, so that they mean what they mean to nsbox. The reasons are in the table of test_bwrap.py."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import fields, replace

import nsbox
from nsbox_differential.view import canonical


def located(op: nsbox.Op, top: str, probe: str = "") -> nsbox.Op:
    """Return the op with "/@" standing for top, and "/@probe" for the probe."""
    changed = {}
    for field in fields(op):
        value = getattr(op, field.name)
        if isinstance(value, str) and "/@" in value:
            changed[field.name] = probe if value == "/@probe" else value.replace("/@", top)
    return replace(op, **changed) if changed else op


def is_twisted(target: str, dest: str) -> bool:
    """Is it a link target that bwrap 0.8 resolves against its half-built root: absolute, or up beyond "/"?"""
    if target.startswith("/"):
        return True
    here = [part for part in os.path.dirname(dest).split("/") if part]
    depth = len(here)
    for part in target.split("/"):
        depth += -1 if part == ".." else part not in ("", ".")
        if depth < 0:
            return True
    return False


def straight(op: nsbox.Symlink) -> str:
    """Return a relative target that names the same place without leaving the root. For links below real directories."""
    if not is_twisted(op.target, op.dest):
        return op.target
    return os.path.relpath(canonical(op.dest, op.target), os.path.dirname(op.dest))


class Spoken:
    """The arguments of a bwrap that does the same, and the descriptors that they name. Close it after use."""

    def __init__(self, ops: Sequence[nsbox.Op]) -> None:
        """Translate; each op in turn."""
        self.fds: list[int] = []
        self.argv = [word for op in ops for word in self._op(op)]

    def close(self) -> None:
        """Close the descriptors."""
        for fd in self.fds:
            os.close(fd)

    def _fd(self, data: bytes | int) -> str:
        assert isinstance(data, bytes)
        fd = os.memfd_create("data")
        os.write(fd, data)
        os.lseek(fd, 0, os.SEEK_SET)
        self.fds.append(fd)
        return str(fd)

    def _op(self, op: nsbox.Op) -> list[str]:
        match op:
            case nsbox.Chmod():
                return ["--chmod", f"{op.mode:04o}", op.dest]
            case nsbox.RemountRo():
                return ["--remount-ro", op.dest]
            case nsbox.Hostname():
                return ["--hostname", op.name]
            case nsbox.Bind() | nsbox.RoBind() | nsbox.DevBind() if op.optional and _is_missing(op.src):
                return self._creating(op)
        words = self._creating(op)
        parent = os.path.dirname(op.dest)  # type: ignore[attr-defined]
        return words if "--perms" in words or parent == "/" else ["--dir", parent, *words]

    def _creating(self, op: nsbox.Op) -> list[str]:
        match op:
            case nsbox.Bind() | nsbox.RoBind() | nsbox.DevBind():
                name = {nsbox.Bind: "--bind", nsbox.RoBind: "--ro-bind", nsbox.DevBind: "--dev-bind"}[type(op)]
                return [name + ("-try" if op.optional else ""), op.src, op.dest]
            case nsbox.Tmpfs():
                size = [] if op.size is None else ["--size", str(op.size)]
                return [*_perms(op.mode, 0o755), *size, "--tmpfs", op.dest]
            case nsbox.Dir():
                return [*_perms(op.mode, 0o755), "--dir", op.dest]
            case nsbox.File():
                return [*_perms(op.mode, None), "--file", self._fd(op.data), op.dest]
            case nsbox.BindData():
                name = "--ro-bind-data" if op.read_only else "--bind-data"
                return [*_perms(op.mode, 0o600), name, self._fd(op.data), op.dest]
            case nsbox.Symlink():
                return ["--symlink", straight(op), op.dest]
            case nsbox.Dev():
                return ["--dev", op.dest, "--chmod", "1777", f"{op.dest.rstrip('/')}/shm"]
            case nsbox.Proc():
                return ["--proc", op.dest]
            case nsbox.Mqueue():
                return ["--mqueue", op.dest]
            case _:
                raise TypeError(f"bwrap 0.8 has no {op!r}")


def _perms(mode: int, usual: int | None) -> list[str]:
    return [] if mode == usual else ["--perms", f"{mode:04o}"]


def _is_missing(path: str) -> bool:
    try:
        os.stat(path)
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False
