"""What the linter knows of escapes, as data: operations and services that no command in a sandbox may have, and why."""

from __future__ import annotations

from fnmatch import fnmatchcase

from nsbox_seatbelt.posix_regex import translate
from nsbox_seatbelt.values import encoded

# Operations that are never allowed, not by an operation that they are part of either.
FORBIDDEN = {
    "appleevent-send": "tells applications outside what to do",
    "authorization-right-obtain": "asks for an administrator's rights",
    "file-chroot": "makes paths mean something else",
    "file-clone": "copies a file without reading it",
    "file-issue-extension": "gives rights to other processes",
    "file-link": "gives a file another name, for which other rules are",
    "file-mount": "puts other files at a path",
    "file-unmount": "puts other files at a path",
    "file-write-setugid": "makes a program that runs as another user",
    "job-creation": "has launchd start programs, outside",
    "lsopen": "has Launch Services start programs, outside",
    "mach-priv-host-port": "controls the machine",
    "nvram-delete": "changes how the machine starts",
    "nvram-get": "is about how the machine starts",
    "nvram-set": "changes how the machine starts",
    "system-kext-load": "loads code into the kernel",
    "system-kext-query": "is about code of the kernel",
    "system-kext-unload": "unloads code of the kernel",
    "system-privilege": "uses root's privileges",
}

# Names of services that act for any process that asks, outside of any sandbox; a * stands for anything.
SERVICES = {
    "com.apple.SecurityServer": "the keychain",
    "com.apple.securityd*": "the keychain",
    "com.apple.secd*": "the keychain",
    "com.apple.security.agent*": "the keychain's questions to the user",
    "com.apple.security.authhost*": "an administrator's rights",
    "com.apple.security.keychain*": "the keychain",
    "com.apple.authd*": "an administrator's rights",
    "com.apple.coreservices.launchservicesd": "starts programs, outside",
    "com.apple.coreservices.appleevents": "tells applications outside what to do",
    "com.apple.coreservices.quarantine-resolver": "opens files with applications outside",
    "com.apple.CoreServices.coreservicesd": "starts programs, outside",
    "com.apple.lsd*": "Launch Services: decides what opens files",
    "com.apple.xpc.smd*": "installs programs that launchd starts",
    "com.apple.backgroundtaskmanagement*": "installs programs that are started at login",
    "com.apple.installd*": "installs programs",
    "com.apple.pasteboard*": "the pasteboard: what the user copies, and pastes elsewhere",
    "com.apple.pboard*": "the pasteboard: what the user copies, and pastes elsewhere",
    "com.apple.windowserver*": "the screen, and the keyboard",
    "com.apple.screencapture*": "the screen",
    "com.apple.dock*": "starts programs, outside",
    "com.apple.tccd*": "permissions that the user gave to applications",
    "com.apple.usernoted*": "messages to the user in another program's name",
    "com.apple.usernotifications*": "messages to the user in another program's name",
    "com.apple.axserver*": "drives other applications",
}

# Allowed without a filter, these are no confinement.
TOO_WIDE = (
    *("default", "file*", "file-read*", "file-read-data", "file-write*", "file-map-executable", "mach*", "mach-lookup"),
    *("mach-priv*", "mach-task*", "network*", "network-outbound", "network-inbound", "network-bind", "iokit*"),
    *("iokit-open*", "iokit-set-properties", "process*", "process-exec*", "process-info*", "signal", "sysctl*"),
    *("sysctl-write", "system*", "syscall*", "ipc*", "user-preference-write", "user-preference*"),
)


def service_reached(kind: str, value: str) -> str | None:
    """Return which of these services a filter lets through, and why not, or None. kind: name, name-prefix or -regex."""
    for pattern, why in SERVICES.items():
        name = pattern.removesuffix("*")
        if kind == "name":
            is_hit = fnmatchcase(value, pattern)
        elif kind == "name-prefix":
            is_hit = name.startswith(value) or (pattern != name and value.startswith(name))
        else:
            is_hit = translate(value).search(encoded(name)) is not None
        if is_hit:
            return f"{pattern}: {why}"
    return None
