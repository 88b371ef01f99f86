"""nsbox: subprocess.Popen, contained by the kernel, in process.

    import nsbox
    nsbox.run(["npm", "test"], cwd="repo")

It has the names of the standard library's subprocess, and Policy with everything around it. This module only
re-exports, and does so lazily (PEP 562): a program that imports nsbox but runs nothing pays next to nothing.

Lean: `typing` (10 ms) is for type checkers alone, and `importlib` (0.4 ms) waits for the first use of a name. Undo this
when each takes less than 5 % of a bare start.

PYTEST_DONT_REWRITE: else pytest, for which nsbox has a plugin, would warn wherever nsbox is imported first.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - pip asks for 3.11, a source tree on PYTHONPATH doesn't
    raise ImportError(f"nsbox needs Python 3.11 or later, and this is {sys.version.split()[0]}: use a newer one")


def _guard_imports() -> None:
    """Guard nsbox's own imports from here on; not in the bwrap of `nsbox bwrap --install`, which starts with -I -S."""
    if "os" in sys.modules or not sys.flags.isolated:
        from nsbox._base.imports import guard

        guard()


_guard_imports()

TYPE_CHECKING = False  # typing takes longer to import than all of this package
if TYPE_CHECKING:
    from typing import Any

    from nsbox._base.errors import (
        AccessError,
        BusyError,
        CommitError,
        ConflictError,
        ForkError,
        IdsError,
        InterpreterError,
        KillError,
        NsboxError,
        PolicyError,
        ProcessesError,
        Reason,
        SetupError,
        Survivor,
        UnavailableError,
    )
    from nsbox._batches.map import PythonMap
    from nsbox._batches.progress import MapProgress
    from nsbox._calls.record import ToolResult
    from nsbox._calls.token import CancelToken
    from nsbox._config.errors import ConfigError
    from nsbox._config.load import Config
    from nsbox._executor.errors import RemoteError
    from nsbox._executor.future import SandboxFuture
    from nsbox._filetools.edit import EditError
    from nsbox._filetools.records import Attachment, Binary, FileChange, Lines, Match, Matches, Media, Paths
    from nsbox._handles.async_stream import AsyncJob, AsyncStream
    from nsbox._handles.dispatch import call_tool
    from nsbox._handles.job import Job, JobOutput
    from nsbox._handles.schemas import tool_schemas
    from nsbox._handles.stream import Stream, StreamEvent
    from nsbox._handles.waiting import in_thread
    from nsbox._kernels.kernel import PythonKernel
    from nsbox._lifetime.usage import Usage
    from nsbox._machine.probe import probe
    from nsbox._network.events import NetworkEvent, NetworkRequest
    from nsbox._network.log import NetworkRecord
    from nsbox._network.network import Network
    from nsbox._paths.patterns import SECRET_FILES
    from nsbox._plan.host import Host
    from nsbox._plan.ops import (
        Bind,
        BindData,
        BindFd,
        Chmod,
        Console,
        Dev,
        DevBind,
        Device,
        Devpts,
        Dir,
        File,
        Hostname,
        Loopback,
        Mask,
        Mqueue,
        Op,
        Overlay,
        Proc,
        RemountRo,
        RoBind,
        RoOverlay,
        Symlink,
        Tmpfs,
        TmpOverlay,
    )
    from nsbox._plan.plan import Plan
    from nsbox._policy.details import Details
    from nsbox._policy.limits import Limits
    from nsbox._policy.policy import Policy
    from nsbox._policy.rules import PathRule
    from nsbox._popen.confine import confined, install
    from nsbox._popen.containment import Containment
    from nsbox._popen.doctor import Check, doctor
    from nsbox._python.reply import PythonException
    from nsbox._python.result import PythonResult, python_schema
    from nsbox._relay.ports import Published
    from nsbox._seccomp.bpf import Arg, Rule
    from nsbox._seccomp.filter import Filter
    from nsbox._tools.explain import explain, plan
    from nsbox._tools.hints import hints
    from nsbox._tools.verdicts import Hint
    from nsbox._transaction.change import Change
    from nsbox.async_python import AsyncKernel, AsyncMap, AsyncPython
    from nsbox.async_sandbox import AsyncSandbox, AsyncSession, AsyncTask
    from nsbox.executor import SandboxExecutor
    from nsbox.python import Python
    from nsbox.sandbox import Sandbox
    from nsbox.session import Session
    from nsbox.subprocess import (
        DEVNULL,
        PIPE,
        STDOUT,
        CalledProcessError,
        CompletedProcess,
        Popen,
        SubprocessError,
        TimeoutExpired,
        call,
        check_call,
        check_output,
        getoutput,
        getstatusoutput,
        list2cmdline,
        run,
    )
    from nsbox.task import Snapshot, Task
    from nsbox.transaction import Transaction

__version__ = "0.1.0"

__all__ = [
    "DEVNULL",
    "PIPE",
    "SECRET_FILES",
    "STDOUT",
    "AccessError",
    "Arg",
    "AsyncJob",
    "AsyncKernel",
    "AsyncMap",
    "AsyncPython",
    "AsyncSandbox",
    "AsyncSession",
    "AsyncStream",
    "AsyncTask",
    "Attachment",
    "Binary",
    "Bind",
    "BindData",
    "BindFd",
    "BusyError",
    "CalledProcessError",
    "CancelToken",
    "Change",
    "Check",
    "Chmod",
    "CommitError",
    "CompletedProcess",
    "Config",
    "ConfigError",
    "ConflictError",
    "Console",
    "Containment",
    "Details",
    "Dev",
    "DevBind",
    "Device",
    "Devpts",
    "Dir",
    "EditError",
    "File",
    "FileChange",
    "Filter",
    "ForkError",
    "Hint",
    "Host",
    "Hostname",
    "IdsError",
    "InterpreterError",
    "Job",
    "JobOutput",
    "KillError",
    "Limits",
    "Lines",
    "Loopback",
    "MapProgress",
    "Mask",
    "Match",
    "Matches",
    "Media",
    "Mqueue",
    "Network",
    "NetworkEvent",
    "NetworkRecord",
    "NetworkRequest",
    "NsboxError",
    "Op",
    "Overlay",
    "PathRule",
    "Paths",
    "Plan",
    "Policy",
    "PolicyError",
    "Popen",
    "Proc",
    "ProcessesError",
    "Published",
    "Python",
    "PythonException",
    "PythonKernel",
    "PythonMap",
    "PythonResult",
    "Reason",
    "RemoteError",
    "RemountRo",
    "RoBind",
    "RoOverlay",
    "Rule",
    "Sandbox",
    "SandboxExecutor",
    "SandboxFuture",
    "Session",
    "SetupError",
    "Snapshot",
    "Stream",
    "StreamEvent",
    "SubprocessError",
    "Survivor",
    "Symlink",
    "Task",
    "TimeoutExpired",
    "TmpOverlay",
    "Tmpfs",
    "ToolResult",
    "Transaction",
    "UnavailableError",
    "Usage",
    "call",
    "call_tool",
    "check_call",
    "check_output",
    "confined",
    "doctor",
    "explain",
    "getoutput",
    "getstatusoutput",
    "hints",
    "in_thread",
    "install",
    "list2cmdline",
    "plan",
    "probe",
    "python_schema",
    "run",
    "tool_schemas",
]

# The module that each name lives in.
_HOMES = {
    "_handles.async_stream": ("AsyncJob", "AsyncStream"),
    "_handles.job": ("Job", "JobOutput"),
    "_calls.record": ("ToolResult",),
    "_handles.stream": ("Stream", "StreamEvent"),
    "_calls.token": ("CancelToken",),
    "_handles.dispatch": ("call_tool",),
    "_handles.schemas": ("tool_schemas",),
    "_handles.waiting": ("in_thread",),
    "async_sandbox": ("AsyncSandbox", "AsyncSession", "AsyncTask"),
    "async_python": ("AsyncKernel", "AsyncMap", "AsyncPython"),
    "_kernels.kernel": ("PythonKernel",),
    "_batches.map": ("PythonMap",),
    "_batches.progress": ("MapProgress",),
    "_seccomp.bpf": ("Arg", "Rule"),
    "_transaction.change": ("Change",),
    "_config.load": ("Config",),
    "_config.errors": ("ConfigError",),
    "_popen.confine": ("confined", "install"),
    "_popen.doctor": ("Check", "doctor"),
    "_base.errors": (
        "AccessError",
        "BusyError",
        "CommitError",
        "ConflictError",
        "ForkError",
        "IdsError",
        "InterpreterError",
        "KillError",
        "NsboxError",
        "PolicyError",
        "ProcessesError",
        "Reason",
        "SetupError",
        "Survivor",
        "UnavailableError",
    ),
    "_tools.explain": ("explain", "plan"),
    "_tools.hints": ("hints",),
    "_tools.verdicts": ("Hint",),
    "_executor.errors": ("RemoteError",),
    "_executor.future": ("SandboxFuture",),
    "_filetools.edit": ("EditError",),
    "_filetools.records": ("Attachment", "Binary", "FileChange", "Lines", "Match", "Matches", "Media", "Paths"),
    "_plan.host": ("Host",),
    "_network.network": ("Network",),
    "_network.events": ("NetworkEvent", "NetworkRequest"),
    "_network.log": ("NetworkRecord",),
    "_relay.ports": ("Published",),
    "_policy.rules": ("PathRule",),
    "_paths.patterns": ("SECRET_FILES",),
    "_plan.ops": (
        "Bind",
        "BindData",
        "BindFd",
        "Chmod",
        "Console",
        "Dev",
        "DevBind",
        "Device",
        "Devpts",
        "Dir",
        "File",
        "Hostname",
        "Loopback",
        "Mask",
        "Mqueue",
        "Op",
        "Overlay",
        "Proc",
        "RemountRo",
        "RoBind",
        "RoOverlay",
        "Symlink",
        "Tmpfs",
        "TmpOverlay",
    ),
    "_plan.plan": ("Plan",),
    "_policy.details": ("Details",),
    "_policy.policy": ("Policy",),
    "_machine.probe": ("probe",),
    "_seccomp.filter": ("Filter",),
    "_popen.containment": ("Containment",),
    "_lifetime.usage": ("Usage",),
    "_policy.limits": ("Limits",),
    "executor": ("SandboxExecutor",),
    "sandbox": ("Sandbox",),
    "python": ("Python",),
    "_python.reply": ("PythonException",),
    "_python.result": ("PythonResult", "python_schema"),
    "session": ("Session",),
    "task": ("Snapshot", "Task"),
    "transaction": ("Transaction",),
    "subprocess": (
        "DEVNULL",
        "PIPE",
        "STDOUT",
        "CalledProcessError",
        "CompletedProcess",
        "Popen",
        "SubprocessError",
        "TimeoutExpired",
        "call",
        "check_call",
        "check_output",
        "getoutput",
        "getstatusoutput",
        "list2cmdline",
        "run",
    ),
}

_FACES = (
    *(
        "async_python",
        "async_sandbox",
        "asyncio",
        "audit",
        "executor",
        "leaks",
        "python",
        "rootfs",
        "sandbox",
        "secrets",
        "session",
        "subprocess",
    ),
    *("otel", "task", "transaction"),
)
_MODULE_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> "Any":
    if name not in _MODULE_OF and name not in _FACES:
        raise AttributeError(f"module 'nsbox' has no attribute {name!r}")
    from importlib import import_module

    if name not in _MODULE_OF:
        return import_module(f"nsbox.{name}")
    value = getattr(import_module(f"nsbox.{_MODULE_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def _refuse_source_tree() -> None:
    """Raise ImportError in a source tree that isn't built: in its directory, Python finds it before an installed nsbox.

    It does nothing in two cases. If there is no C core for the machine, there is nothing to build. If os isn't loaded,
    the interpreter was started without its site module, by a program that knows where nsbox is.
    """
    os = sys.modules.get("os")
    tree = __path__[0].rpartition("/")[0]
    if os is None or not os.path.exists(f"{tree}/csrc/abi.h"):
        return
    from nsbox._core import abi

    has_core = (abi.on_linux or abi.on_darwin) and os.uname().machine in ("x86_64", "aarch64", "arm64")
    if has_core and "No module named 'nsbox._nsbox'" in abi.problem:
        what = f"{__path__[0]} is nsbox's source, which isn't built, and Python finds it before an installed nsbox"
        remedy = f"run 'sh .ci/setup --editable' in {tree}, which does pip install -e . and installs what that needs"
        raise ImportError(f"{what}: change the directory, or {remedy}", name="nsbox")


_refuse_source_tree()
