"""What pip, compilers and Python say when nsbox can't be installed or imported."""

from __future__ import annotations

from nsbox._cli.doctor import looks
from nsbox._cli.doctor.symptom import Symptom, pattern

INSTALLATION = (
    Symptom(
        "source-tree",
        "install",
        "ImportError: nsbox is nsbox's source, which isn't built",
        pattern("which isn't built", "nsbox's source"),
        ("clone",),
        "Python finds a clone of nsbox before the installed package",
        "change the directory; or, in the clone, `sh .ci/setup --editable`",
        None,
        "install.md",
    ),
    Symptom(
        "core",
        "install",
        "the C core is missing: No module named 'nsbox._nsbox'",
        pattern("C core", "wrong ELF class", r"_nsbox\b", "Exec format error"),
        ("import",),
        "the package's compiled part isn't there, or is for another kind of machine",
        "`pip install --force-reinstall nsbox`, with the Python that will run it",
        looks.core,
        "install.md",
    ),
    Symptom(
        "python",
        "install",
        "ERROR: Package 'nsbox' requires a different Python: 3.9.2 not in '>=3.11'",
        pattern("requires a different Python", "Requires-Python", "No matching distribution found for nsbox"),
        ("version",),
        "nsbox needs Python 3.11 or later",
        "install it with a newer one: `python3.11 -m venv .venv && .venv/bin/pip install nsbox`",
        looks.python,
        "install.md",
    ),
    Symptom(
        "platform",
        "install",
        "ERROR: nsbox-0.1.0-cp311-abi3-manylinux_2_28_x86_64.whl is not a supported wheel on this platform.",
        pattern("not a supported wheel", "there is no C core for"),
        ("architecture", "arm", "musl", "alpine", "windows"),
        "the wheel is for another machine or C library, or pip is too old to know it",
        "`pip install --upgrade pip`; on another kind of machine, `pip install --no-binary nsbox nsbox`, with a "
        "compiler",
        looks.machine,
        "install.md",
    ),
    Symptom(
        "compiler",
        "install",
        "ERROR: Unknown compiler(s): [['cc'], ['gcc'], ['clang']]",
        pattern(
            r"Unknown compiler",
            "Python.h: No such file",
            r"\b(?:cc|gcc): (?:command )?not found",
            "cannot compile programs",
        ),
        ("gcc", "build"),
        "pip found no wheel, so it compiles the source, and there is no compiler",
        "`pip install --upgrade pip`, which may find the wheel; else install a compiler: `apt install gcc libc6-dev`",
        looks.compiler,
        "install.md",
    ),
    Symptom(
        "pip",
        "install",
        "error: metadata-generation-failed",
        pattern(
            "metadata-generation-failed",
            "mesonpy",
            "backend.{0,40}(?:unavailable|not available)",
            "invalid wheel filename",
        ),
        ("old-pip", "meson"),
        "pip is too old for the wheel's name, or can't get what it needs to build",
        "`pip install --upgrade pip`",
        looks.pip,
        "install.md",
    ),
    Symptom(
        "externally-managed",
        "install",
        "error: externally-managed-environment",
        pattern("externally-managed-environment"),
        ("venv",),
        "this Python belongs to the system, which doesn't let pip install anything into it",
        "`python3 -m venv .venv && .venv/bin/pip install nsbox`",
        None,
        "run-tools.md",
    ),
)
