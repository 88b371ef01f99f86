"""nsbox: subprocess.Popen, contained by the kernel, in process.

    import nsbox
    nsbox.run(["npm", "test"], cwd="repo")

Names of the standard library's subprocess, plus Policy and what belongs to it; this module only re-exports.
"""

from nsbox._errors import AccessError, NsboxError, PolicyError, Reason, SetupError, UnavailableError
from nsbox._explain import explain
from nsbox._host import Host
from nsbox._plan import (
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
    Plan,
    Proc,
    RemountRo,
    RoBind,
    RoOverlay,
    Symlink,
    Tmpfs,
    TmpOverlay,
)
from nsbox._policy import Limits, Policy
from nsbox._probe import probe
from nsbox._spawn import Containment
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

__version__ = "0.1.0"

__all__ = [
    "DEVNULL",
    "PIPE",
    "STDOUT",
    "AccessError",
    "Bind",
    "BindData",
    "BindFd",
    "CalledProcessError",
    "Chmod",
    "CompletedProcess",
    "Console",
    "Containment",
    "Dev",
    "DevBind",
    "Device",
    "Devpts",
    "Dir",
    "File",
    "Host",
    "Hostname",
    "Limits",
    "Loopback",
    "Mask",
    "Mqueue",
    "NsboxError",
    "Op",
    "Overlay",
    "Plan",
    "Policy",
    "PolicyError",
    "Popen",
    "Proc",
    "Reason",
    "RemountRo",
    "RoBind",
    "RoOverlay",
    "SetupError",
    "SubprocessError",
    "Symlink",
    "TimeoutExpired",
    "TmpOverlay",
    "Tmpfs",
    "UnavailableError",
    "call",
    "check_call",
    "check_output",
    "explain",
    "getoutput",
    "getstatusoutput",
    "list2cmdline",
    "probe",
    "run",
]
