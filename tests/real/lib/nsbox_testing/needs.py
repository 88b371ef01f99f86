"""What tests need besides what `sh .ci/setup --tests` installs; and the end of a run, which says what was missing.

A test that needs a program asks here. A program that is too old counts as not there. So does one that has a minimum
version and doesn't run.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import re
import shutil
import subprocess
import sys
import sysconfig
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path

import pytest

# By Debian's names; a program that is its own package isn't listed.
PACKAGES = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "busybox": "busybox or busybox-static",
    "bwrap": "bubblewrap",
    "cc": "gcc libc6-dev",
    "dig": "bind9-dnsutils",
    "dropbear": "dropbear-bin",
    "gcc": "gcc libc6-dev",
    "go": "golang-go",
    "gpg": "gnupg",
    "host": "bind9-host",
    "ip": "iproute2",
    "javac": "default-jdk-headless",
    "musl-gcc": "musl-tools",
    "newuidmap": "uidmap",
    "node": "nodejs",
    "nslookup": "bind9-dnsutils",
    "ps": "procps",
    "psql": "postgresql-client",
    "rg": "ripgrep",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "unshare": "util-linux",
}
# The oldest version that works, unless any does. meson.build requires meson's, meson requires ninja's, and
# sandbox-runtime requires Node's.
MINIMUM = {"meson": (1, 6), "ninja": (1, 8, 2), "node": (20,)}
_START = "needs "


def reason(name: str, more: str = "") -> str:
    """Return why a test that needs a program is skipped: the program, which version, and Debian's package of it."""
    version = ".".join(map(str, MINIMUM[name])) if name in MINIMUM else ""
    wanted = f"{name} {version} or later" if version else name
    return f"{_START}{wanted} (Debian: {PACKAGES.get(name, name)}){more}"


@functools.cache
def find(name: str) -> str | None:
    """Return the path of a program; None if it isn't there, or has a MINIMUM and is older or doesn't run.

    One beside this interpreter comes first, since its virtual environment may not be active; then the first on PATH.
    """
    beside = shutil.which(name, path=sysconfig.get_path("scripts"))
    return next((path for path in (beside, shutil.which(name)) if path and _is_new_enough(name, path)), None)


def _is_new_enough(name: str, path: str) -> bool:
    if name not in MINIMUM:
        return True
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return False
    found = re.search(r"\d+(\.\d+)*", done.stdout)
    return found is not None and tuple(map(int, found.group().split("."))) >= MINIMUM[name]


def programs(*names: str) -> pytest.MarkDecorator:
    """Mark a test that needs these programs."""
    lacking = [name for name in names if find(name) is None]
    return pytest.mark.skipif(bool(lacking), reason=reason(lacking[0]) if lacking else "")


def library(name: str, package: str) -> pytest.MarkDecorator:
    """Mark a test that needs a C library, by its file's name and Debian's package."""
    try:
        ctypes.CDLL(name)
    except OSError:
        return pytest.mark.skipif(True, reason=reason(package))
    return pytest.mark.skipif(False, reason="")


def module(name: str) -> pytest.MarkDecorator:
    """Mark a test that needs a module of Python's."""
    lacking = importlib.util.find_spec(name) is None
    return pytest.mark.skipif(lacking, reason=f"{_START}the Python module {name}")


def copied_installation() -> pytest.MarkDecorator:
    """Mark a test that needs nsbox installed as users have it, since an editable one is found and built on import."""
    url = metadata.distribution("nsbox").read_text("direct_url.json") or ""
    return pytest.mark.skipif('"editable": true' in url, reason=f"{_START}an installation that isn't editable")


def require(*names: str) -> str:
    """Return the path of the first of these programs; skip the test if one isn't there."""
    for name in names:
        if find(name) is None:
            pytest.skip(reason(name))
    return str(find(names[0]))


def builder() -> tuple[str, str]:
    """Return the paths of a meson and a ninja that can build the C core; skip the test if something is missing for it."""
    if find("cc") is None:
        require("gcc")
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        pytest.skip(f"{_START}Python.h of {sys.executable} (Debian: python3-dev)")
    if importlib.util.find_spec("cffi") is None or importlib.util.find_spec("cffi.gen_src") is None:
        pytest.skip(f"{_START}the Python module cffi 2.1 or later")
    return require("meson"), require("ninja")


# ---- the end of a run


def summary(reasons: Iterable[str]) -> str:
    """Return a paragraph for the end of a run: how many tests were skipped for want of what; "" if none was.

    reasons: one for each test that was skipped, whatever for.
    """
    lacking = Counter(filter(None, map(_lack, reasons)))
    if not lacking:
        return ""
    listed = "; ".join(f"{what}: {count}" for what, count in lacking.most_common())
    return f"Tests skipped because this machine lacks something: {lacking.total()}. They need {listed}."


def _lack(text: str) -> str:
    """Return what a reason to skip says is missing; "" if nothing is, such as for a test that is for root alone."""
    text = text.removeprefix("Skipped: ")
    if text.startswith(_START):
        return text.removeprefix(_START)
    unimportable = re.match(r"could not import '([\w.]+)'", text)
    return f"the Python module {unimportable[1]}" if unimportable else ""
