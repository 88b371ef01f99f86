"""Errors: whose fault, what they say, and that they survive a trip to another process."""

from __future__ import annotations

import copy
import errno
import os
import pickle
import traceback
from dataclasses import replace

import pytest

import nsbox
from nsbox import AccessError, Host, NsboxError, Policy, PolicyError, Reason, SetupError, UnavailableError
from nsbox._backends import compile_policy, namespaces

HOST = Host(kernel=(6, 1), directories=(("/usr", None),))

EXAMPLES = [
    PolicyError("deny", "/w hides /w/x"),
    UnavailableError(Reason("no luck", "try again"), Reason("no hope")),
    UnavailableError(),
    SetupError(errno.EPERM, "mount", "bind /a -> /b [ro]", "a hint"),
    SetupError(errno.EPERM, "clone"),
    AccessError("/etc/x", "is not in the sandbox"),
]


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [(PolicyError, ValueError), (UnavailableError, OSError), (SetupError, OSError), (AccessError, PermissionError)],
)
def test_tree(kind: type[Exception], builtin: type[Exception]) -> None:
    """Each error is nsbox's own and the builtin that code already catches."""
    assert issubclass(kind, NsboxError)
    assert issubclass(kind, builtin)
    assert getattr(nsbox, kind.__name__) is kind
    assert [base for base in (PolicyError, UnavailableError, SetupError, AccessError) if issubclass(kind, base)] == [
        kind
    ]
    assert not issubclass(NsboxError, OSError | ValueError)


@pytest.mark.parametrize("error", EXAMPLES, ids=lambda e: str(e)[:40])
def test_copies_are_the_same(error: NsboxError) -> None:
    """An error that went through pickle or copy says the same and has the same fields."""
    again = [pickle.loads(pickle.dumps(error, protocol)) for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1)]
    for other in (*again, copy.copy(error), copy.deepcopy(error)):
        assert type(other) is type(error)
        assert str(other) == str(error)
        assert repr(other) == repr(error)
        assert other.args == error.args
        for name in ("field", "problem", "reasons", "errno", "strerror", "filename", "step", "op", "hint"):
            assert getattr(other, name, None) == getattr(error, name, None), name


def test_policy_error() -> None:
    """A PolicyError names the field and the problem."""
    error = PolicyError("deny", "/w hides /w/x")
    assert (error.field, error.problem) == ("deny", "/w hides /w/x")
    assert str(error) == "deny: /w hides /w/x"


def test_unavailable_error() -> None:
    """An UnavailableError lists all reasons, and the remedy of each that has one."""
    error = UnavailableError(Reason("no luck", "try again"), Reason("no hope"))
    assert str(error) == "this machine can't do it: no luck (remedy: try again); no hope"
    assert error.errno == errno.ENOTSUP
    assert [reason.remedy for reason in error.reasons] == ["try again", ""]
    assert str(error.reasons[1]) == "no hope"


def test_setup_error() -> None:
    """A SetupError says op, step, the kernel's word and the hint; each where there is one."""
    full = SetupError(errno.EPERM, "mount", "bind /data -> /data [ro]", "a hint")
    assert str(full) == "bind /data -> /data [ro]: mount: Operation not permitted; a hint"
    assert (full.errno, full.step, full.op, full.hint) == (errno.EPERM, "mount", "bind /data -> /data [ro]", "a hint")
    assert str(SetupError(errno.EAGAIN, "clone")) == f"clone: {os.strerror(errno.EAGAIN)}"
    assert SetupError(errno.EAGAIN, "clone").op is None


def test_setup_error_is_never_a_file_error() -> None:
    """ENOENT of a set-up step isn't FileNotFoundError: that one means the command's program."""
    for number in (errno.ENOENT, errno.EACCES, errno.EEXIST, errno.ENOTDIR):
        assert not isinstance(SetupError(number, "open source"), FileNotFoundError | PermissionError | FileExistsError)


def test_access_error() -> None:
    """An AccessError is a PermissionError that names the path."""
    error = AccessError("/etc/x", "is not in the sandbox")
    assert error.errno == errno.EACCES
    assert error.filename == "/etc/x"
    assert str(error) == "/etc/x is not in the sandbox"


def test_notes_survive() -> None:
    """What add_note() has added is still there on the other side."""
    for error in EXAMPLES:
        noted = copy.copy(error)
        noted.add_note("a note")
        assert pickle.loads(pickle.dumps(noted)).__notes__ == ["a note"]


# ---- why a machine can't


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"kernel": (5, 12)}, []),
        ({"kernel": (7, 0)}, []),
        ({"kernel": (5, 11)}, ["5.11", "5.12"]),
        ({"kernel": (4, 19)}, ["4.19"]),
        ({"system": "Darwin", "kernel": (0, 0)}, ["Darwin"]),
        ({"core_problem": "the C core is missing"}, ["the C core is missing"]),
        ({"max_user_namespaces": 0}, ["user.max_user_namespaces"]),
        ({"max_user_namespaces": 0, "can_set_ids": True, "euid": 0}, ["user.max_user_namespaces"]),
        ({"max_user_namespaces": 1}, []),
        ({"unprivileged_userns": False}, ["unprivileged_userns_clone"]),
        ({"unprivileged_userns": False, "can_set_ids": True, "euid": 0}, []),
        ({"unprivileged_userns": True}, []),
    ],
)
def test_missing(changes: dict[str, object], words: list[str]) -> None:
    """missing() says what the host lacks, and how to get it; nothing where it lacks nothing that is known."""
    host = replace(HOST, **changes)
    text = " / ".join(map(str, namespaces.missing(host)))
    assert bool(text) is bool(words)
    assert all(word in text for word in words)
    if not words:
        assert compile_policy(Policy.host(), host).backend == "namespaces"
        return
    with pytest.raises(UnavailableError) as caught:
        compile_policy(Policy.host(backend="namespaces"), host)
    prefix = "" if host.core_problem else "namespaces: "  # no backend works without the core
    assert [reason.what for reason in caught.value.reasons] == [
        f"{prefix}{reason.what}" for reason in namespaces.missing(host)
    ]


@pytest.mark.parametrize(
    ("changes", "remedy"),
    [
        ({"system": "Linux", "machine": "x86_64"}, "pip install --force-reinstall nsbox, with the Python that runs it"),
        (
            {"system": "Linux", "machine": "aarch64"},
            "pip install --force-reinstall nsbox, with the Python that runs it",
        ),
        (
            {"system": "Linux", "machine": "riscv64"},
            "use Linux or macOS, on x86_64 or aarch64; this is Linux on riscv64",
        ),
        (
            {"system": "Windows", "machine": "AMD64"},
            "use Linux or macOS, on x86_64 or aarch64; this is Windows on AMD64",
        ),
    ],
)
def test_without_the_core(changes: dict[str, str], remedy: str) -> None:
    """Whatever else is missing, one reason says what to do: install again, or that this machine is of no known kind."""
    host = replace(HOST, core_problem="the C core is missing", max_user_namespaces=0, landlock_abi=0, **changes)
    with pytest.raises(UnavailableError) as caught:
        compile_policy(Policy.workspace("/tmp"), host)
    assert [(reason.what, reason.remedy) for reason in caught.value.reasons] == [("the C core is missing", remedy)]
    assert "\n" not in str(caught.value)


def test_all_reasons_at_once() -> None:
    """All that is wrong is said in one go, so that it can be mended in one go."""
    host = replace(HOST, kernel=(5, 4), core_problem="gone", max_user_namespaces=0, unprivileged_userns=False)
    reasons = namespaces.missing(host)
    assert len(reasons) == 4
    assert all(reason.remedy for reason in reasons)


def test_another_system_has_no_remedy_by_kernel() -> None:
    """On another system the kernel's number means nothing and isn't complained about."""
    reasons = namespaces.missing(Host(system="Darwin", kernel=(0, 0), core_problem="there is no C core for darwin"))
    assert len(reasons) == 2
    assert not any("mount_setattr" in str(reason) for reason in reasons)


def test_explain_raises_too() -> None:
    """explain() for a host that can't says so, instead of a plan that nobody can carry out."""
    with pytest.raises(UnavailableError, match=r"5\.11"):
        nsbox.explain(Policy.host(), replace(HOST, kernel=(5, 11)))


def test_errors_are_named_as_users_import_them() -> None:
    """A traceback says nsbox.AccessError, wherever the class is defined; and so does a pickle."""
    errors = [
        value
        for name in nsbox.__all__
        if isinstance(value := getattr(nsbox, name), type) and issubclass(value, nsbox.NsboxError)
    ]
    assert len(errors) >= 10
    for error in errors:
        assert error.__module__ == "nsbox", error
        assert getattr(nsbox, error.__name__) is error
    error = nsbox.AccessError("/root", "is outside of the sandbox")
    said = traceback.format_exception(error)
    assert said[-1].startswith("nsbox.AccessError: /root is outside")
    data = pickle.dumps(error)
    assert b"_base" not in data and str(pickle.loads(data)) == str(error)
