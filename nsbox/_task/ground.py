"""Where the file tools of a task open files: beneath its root, in which single files are mounted over an overlay's."""

from __future__ import annotations

from nsbox._filetools.ground import RootGround


class TaskGround(RootGround):
    """The root of a task: everything in it, except the kernel's file systems."""

    crosses = True
