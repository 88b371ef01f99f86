"""Runs in a sandbox: tries everything with every path (JSON on stdin), and says what came of it (JSON on stdout)."""

import errno
import json
import os
import stat
import sys

WORDS = {
    errno.ENOENT: "absent",
    errno.ENOTDIR: "absent",
    errno.EACCES: "refused",
    errno.EPERM: "refused",
    errno.EROFS: "refused",
    errno.EBUSY: "refused",
    errno.ELOOP: "loop",
    errno.EISDIR: "dir",
}


def look(path, i):
    mode = os.lstat(path).st_mode
    return "dir" if stat.S_ISDIR(mode) else "link" if stat.S_ISLNK(mode) else "file"


def read(path, i):
    with open(path, "rb") as file:
        return file.read().decode()


def names(path, i):
    return sorted(os.listdir(path))


def chmod(path, i):
    os.chmod(path, 0o700)


def append(path, i):
    fd = os.open(path, os.O_WRONLY | os.O_APPEND)
    os.write(fd, b"!")
    os.close(fd)


def create(path, i):
    os.close(os.open(f"{path}/+{i}", os.O_WRONLY | os.O_CREAT | os.O_EXCL))


def rename(path, i):
    os.lstat(path)  # of what isn't there rename(2) says EROFS first
    os.rename(path, path + "~")
    os.rename(path + "~", path)


def remove(path, i):
    if stat.S_ISDIR(os.lstat(path).st_mode):
        return "dir"
    os.unlink(path)


def attempt(what, path, i):
    try:
        result = what(path, i)
    except OSError as error:
        return WORDS.get(error.errno, str(error))
    return "ok" if result is None else result


asked = json.load(sys.stdin)
attempts = (look, read, names, chmod, append, create, rename, remove)
json.dump({what.__name__: [attempt(what, path, i) for i, path in enumerate(asked)] for what in attempts}, sys.stdout)
