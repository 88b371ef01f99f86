"""What commands may ask of macOS besides files: the names of system services, as data, each with its reason. Pure.

No service may be added that starts programs outside, or acts there in the user's name: launchd's jobs, Launch Services,
Apple Events, the pasteboard, the keychain, the window server. The names come from profiles of other projects that have
long been in use (the documentation names them), not from experiments on a Mac.
"""

from __future__ import annotations

from nsbox._base.frozen import Frozen, frozen
from nsbox._plan.sbpl import all_of, words


@frozen
class Set(Frozen):
    """Operations that are allowed, or denied, together.

    operations: their names.
    filters: what they may be about, in SBPL.
    about: the reason, which becomes a comment in the profile.
    """

    operations: str
    filters: tuple[str, ...]
    about: str


def _set(about: str, operations: str, *filters: str) -> Set:
    return Set(operations, filters, about)


_SYSCTLS = (
    *("hw.activecpu", "hw.busfrequency_compat", "hw.byteorder", "hw.cacheconfig", "hw.cachelinesize"),
    *("hw.cachelinesize_compat", "hw.cpufamily", "hw.cpufrequency", "hw.cpufrequency_compat", "hw.cputype"),
    *("hw.l1dcachesize_compat", "hw.l1icachesize_compat", "hw.l2cachesize_compat", "hw.l3cachesize_compat"),
    *("hw.logicalcpu", "hw.logicalcpu_max", "hw.machine", "hw.memsize", "hw.model", "hw.ncpu", "hw.nperflevels"),
    *("hw.packages", "hw.pagesize", "hw.pagesize_compat", "hw.physicalcpu", "hw.physicalcpu_max"),
    *("hw.tbfrequency_compat", "hw.vectorunit", "machdep.cpu.brand_string", "machdep.ptrauth_enabled"),
    *(
        "kern.argmax",
        "kern.bootargs",
        "kern.boottime",
        "kern.hostname",
        "kern.maxfiles",
        "kern.maxfilesperproc",
        "kern.maxproc",
    ),
    *("kern.ngroups", "kern.osproductversion", "kern.osrelease", "kern.ostype", "kern.osvariant_status"),
    *("kern.osversion", "kern.secure_kernel", "kern.tcsm_available", "kern.tcsm_enable", "kern.usrstack64"),
    *("kern.version", "kern.willshutdown", "security.mac.lockdown_mode_state", "sysctl.proc_cputype", "vm.loadavg"),
)
_SYSCTL_PREFIXES = ("hw.optional.arm", "hw.perflevel")

# (deny default) doesn't cover all operations: some are allowed unless a rule names them (as Firefox's profiles say).
CLOSED = (
    _set(
        "what is allowed by default",
        "process-info* nvram* iokit-get-properties file-map-executable",
    ),
    _set("other names for a file or for its contents, which would be a way to it", "file-link file-clone"),
    _set("what acts outside", "file-mount file-unmount lsopen system-privilege"),
)

# Exceptions to what is allowed, so they come last.
EXCEPTIONS = (
    _set(
        "what would outlast the command: set-user-ID programs, and what keeps a file from being removed",
        "file-write-setugid file-write-flags file-write-acl",
    ),
    # By number: whether the compiler knows their names depends on its version.
    _set(
        "F_MAKECOMPRESSED and F_TRANSFEREXTENTS change a file that is open for reading only",
        "system-fcntl",
        "(fcntl-command 80 110)",
    ),
    _set(
        "TIOCSTI types into a terminal: for root into any (CVE-2017-5226)", "file-ioctl", "(ioctl-command 2147578994)"
    ),
    _set("services of applications", "mach-lookup", '(xpc-service-name-prefix "")'),
)

COMMON = (
    _set("to run programs", "process-fork"),
    _set("its own processes, and no others", "signal process-info*", "(target same-sandbox)"),
    _set(
        "how many processors there are, how large a page is, uname(3)",
        "sysctl-read",
        *words("sysctl-name", _SYSCTLS),
        *words("sysctl-name-prefix", _SYSCTL_PREFIXES),
    ),
    _set(
        "Java asks for the kind of processor with a write that changes nothing",
        "sysctl-write",
        *words("sysctl-name", ("kern.grade_cputype",)),
    ),
    _set(
        "names of users and groups: getpwuid(3)",
        "mach-lookup",
        *words(
            "global-name", ("com.apple.system.opendirectoryd.libinfo", "com.apple.system.opendirectoryd.membership")
        ),
    ),
    _set(
        "what programs log when they start",
        "mach-lookup",
        *words("global-name", ("com.apple.logd", "com.apple.system.logger", "com.apple.system.notification_center")),
    ),
    _set(
        "the memory through which notifications arrive",
        "ipc-posix-shm-read*",
        '(ipc-posix-name "apple.shm.notification_center")',
    ),
    _set(
        "its directory for temporary files by name: confstr(3)",
        "mach-lookup",
        '(global-name "com.apple.bsd.dirhelper")',
    ),
    _set("semaphores of Python's multiprocessing", "ipc-posix-sem"),
    _set(
        "libomp finds out by these whether it is loaded twice (NumPy, PyTorch)",
        "ipc-posix-shm-read-data ipc-posix-shm-write-create ipc-posix-shm-write-unlink",
        '(ipc-posix-name-regex #"^/__KMP_REGISTERED_LIB_[0-9]+$")',
    ),
    _set(
        "shared memory of Python's multiprocessing",
        "ipc-posix-shm-read* ipc-posix-shm-write*",
        '(ipc-posix-name-regex #"^/psm_[0-9a-f]+$")',
    ),
    _set(
        "what dyld asks at each start",
        "system-mac-syscall",
        '(mac-policy-name "vnguard")',
        all_of('(mac-policy-name "Sandbox")', "(mac-syscall-number 67)"),
    ),
)

_CHARACTERS = "(vnode-type CHARACTER-DEVICE)"  # so that a file in place of the device doesn't match

DEVICES = (
    _set(
        "devices that hold nothing",
        "file-read* file-test-existence file-write-data file-ioctl",
        *(all_of(f'(literal "/dev/{name}")', _CHARACTERS) for name in ("null", "zero")),
    ),
    _set(
        "randomness, and what loaders try",
        "file-read* file-test-existence file-ioctl",
        *(all_of(f'(literal "/dev/{name}")', _CHARACTERS) for name in ("random", "urandom", "dtracehelper")),
        '(literal "/dev")',
        '(literal "/dev/autofs_nowait")',
    ),
    _set(
        "its own descriptors by name",
        "file-read* file-test-existence file-write-data",
        '(subpath "/dev/fd")',
        *(f'(literal "/dev/{name}")' for name in ("stdin", "stdout", "stderr")),
    ),
    _set("new terminals", "pseudo-tty"),
    _set(
        "new terminals, and the one it has",
        "file-read* file-test-existence file-write-data file-ioctl",
        all_of('(literal "/dev/ptmx")', _CHARACTERS),
        all_of('(literal "/dev/tty")', _CHARACTERS),
        all_of('(regex #"^/dev/ttys[0-9]+$")', '(extension "com.apple.sandbox.pty")'),
    ),
    _set("settings of a terminal that was open before", "file-ioctl", '(regex #"^/dev/ttys[0-9]+$")'),
)

NETWORK = (
    _set("internet addresses, but no sockets that are files", "network-outbound", '(remote ip "*:*")'),
    # A socket for both versions of IP is bound as ::ffff:127.0.0.1, which "localhost" doesn't match.
    _set("servers", "network-bind network-inbound", '(local ip "*:*")'),
    _set("names of hosts", "network-outbound", '(literal "/private/var/run/mDNSResponder")'),
    _set(
        "routes and interfaces",
        "system-socket",
        all_of("(socket-domain AF_SYSTEM)", "(socket-protocol 2)"),
        "(socket-domain AF_ROUTE)",
    ),
    _set("routes and interfaces", "sysctl-read", '(sysctl-name-prefix "net.routetable")'),
    _set(
        "which servers answer for names, and which network it is",
        "mach-lookup",
        *words(
            "global-name",
            (
                "com.apple.SystemConfiguration.DNSConfiguration",
                "com.apple.SystemConfiguration.configd",
                "com.apple.networkd",
            ),
        ),
    ),
)

PRESETS = {
    "tls": (
        _set(
            "certificates checked by the system (Go, Security.framework), by services that use the network themselves",
            "mach-lookup",
            *words("global-name", ("com.apple.trustd", "com.apple.trustd.agent", "com.apple.ocspd")),
        ),
    ),
    "fsevents": (
        _set(
            "names of files that change, anywhere (watchers)",
            "mach-lookup",
            *words("global-name", ("com.apple.FSEvents",)),
        ),
    ),
    "fonts": (
        _set(
            "fonts of the user",
            "mach-lookup",
            *words("global-name", ("com.apple.fonts", "com.apple.FontObjectsServer")),
        ),
    ),
    "preferences": (
        _set(
            "settings of all applications, to be read",
            "mach-lookup",
            *words("global-name", ("com.apple.cfprefsd.agent", "com.apple.cfprefsd.daemon")),
            *words("local-name", ("com.apple.cfprefsd.agent",)),
        ),
        _set("settings of all applications, to be read", "user-preference-read"),
        _set("settings, from memory", "ipc-posix-shm-read*", '(ipc-posix-name-prefix "apple.cfprefs.")'),
    ),
    "power": (
        _set(
            "the power supply (some event loops); with it the machine can be put to sleep, or kept awake",
            "iokit-open",
            '(iokit-registry-entry-class "RootDomainUserClient")',
        ),
        _set("sleep", "mach-lookup", '(global-name "com.apple.PowerManagement.control")'),
    ),
    "process-list": (
        _set(
            "which processes the machine has (psutil, top)",
            "sysctl-read",
            '(sysctl-name "kern.proc.all")',
            *words("sysctl-name-prefix", ("kern.proc.all.", "kern.proc.pgrp.", "kern.proc.pid.")),
        ),
    ),
}
