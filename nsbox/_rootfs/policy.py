"""The policy for a command in a root file system of its own. Pure, except that it looks at the paths of its arguments.

It protects as Policy.workspace() does. What `_layout.workspace` adds to a workspace by itself is written out here.
"""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import Iterable, Mapping

from nsbox._base.checks import check_path, check_size
from nsbox._base.errors import PolicyError
from nsbox._base.frozen import TYPE_CHECKING, replace
from nsbox._base.paths import PACKAGE, is_below
from nsbox._paths.resolution import Resolution
from nsbox._paths.user_homes import check_workspace
from nsbox._plan import ops
from nsbox._policy.limits import Limits, with_small
from nsbox._policy.policy import Policy

if TYPE_CHECKING:
    from typing import Any, Literal

    from nsbox._network.network import Network
    from nsbox._policy.policy import Path

PATH = "/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin"  # build() looks up programs there, too
MANIFEST = ".nsbox-rootfs.json"
_NEEDED = ("/proc", "/dev", "/tmp", "/run", "/workspace")
MOUNT_POINTS = (*_NEEDED, "/agent")
_RUN_SIZE = 64 << 10
_USERS = {0: "root", 1000: "sandbox"}
# What a workspace hides of procfs, for any uid: see _layout.workspace.
_MASKED = ("1/autogroup", "keys", "key-users", *ops.PROC_SECRETS)


def policy(
    dest: Path,
    *,
    workspace: Path,
    agent: Path | None = None,
    runtime: Mapping[str, Path] | None = None,
    bridge: Path | None = None,
    network: Literal["none", "host", "public"] | list[str] | tuple[str, ...] | Network = "none",
    tmp_size: int | str | None = None,
    env: Mapping[str, str] | Iterable[tuple[str, str]] = (),
    uid: int = 1000,
    gid: int = 1000,
    hostname: str = "sandbox",
    **wishes: Any,
) -> Policy:
    """Return the policy for commands that see this root file system, read-only, and one workspace at /workspace.

    /proc, /dev and /tmp are the sandbox's own, and so are all namespaces.

    dest: the root, from build() or elsewhere.
    workspace: the directory of this machine that commands see as /workspace, the only one that they can change.
    agent: a directory that they see as /agent, read-only. Default: None.
    runtime: directories by their paths inside, read-only, such as {"/usr/local/node": "/opt/node-22"}. The bin of each
        comes first in PATH. Default: None.
    bridge: a unix socket that they see as /run/bridge.sock. Default: None.
    network: "none", "host", or a list, as a policy's. Default: "none".
    tmp_size: how many bytes /tmp, /dev/shm and /dev may hold, each. Default: None, for half of the memory.
    env: variables in addition to PATH, HOME, TMPDIR, USER, LANG and TERM. None of these is the caller's. Default: ().
    uid, gid: the command's ids inside; outside, they are the caller's. Default: 1000.
    hostname: the host name inside. Default: "sandbox".
    wishes: further fields of Policy.

    Raises PolicyError for a path that doesn't exist or has the wrong type, and for a mount point that the root lacks.
    A workspace that contains one of the other paths, or the running Python, is a PolicyError too: commands could change
    that.
    """
    resolution = Resolution()
    root, work = _directory(resolution, "dest", dest), _directory(resolution, "workspace", workspace)
    binds = {
        check_path("runtime", path): _directory(resolution, "runtime", host) for path, host in (runtime or {}).items()
    }
    if agent is not None:
        binds["/agent"] = _directory(resolution, "agent", agent)
    socket = None if bridge is None else _socket(resolution, bridge)
    resolution.check([work])
    check_workspace(work, (), instead=f"Policy.layers(Bind({work!r}, '/workspace'), ...)")
    _check_apart(work, {"dest": [root], "agent and runtime": [*binds.values()], "bridge": [socket] if socket else []})
    for path in _NEEDED:
        _check_mount_point("dest", path, {"/": root})
    for path in sorted(binds):
        _check_runtime(path)
        others = {"/": root} | {other: host for other, host in binds.items() if other != path}
        _check_mount_point("agent" if path == "/agent" else "runtime", path, others)
    size = None if tmp_size is None else check_size("tmp_size", tmp_size)
    layers = _ops(root, work, binds, socket, size, has_host_network=network == "host")
    names = {"ipc", "uts", "cgroup"} | (set() if network == "host" else {"net"})
    chosen = _wishes(wishes, network) | {"network": network, "uid": uid, "gid": gid, "hostname": hostname}
    return Policy.layers(
        *layers, unshare=names, env=_environment(env, binds, uid, wishes.get("pass_env", ())), **chosen
    )


def _ops(
    root: str, work: str, binds: Mapping[str, str], socket: str | None, size: int | None, *, has_host_network: bool
) -> list[ops.Op]:
    layers: list[ops.Op] = [ops.RoBind(root, "/", nofollow=True), ops.Proc("/proc", cover="sys"), *_dev(size)]
    layers += [ops.Tmpfs("/tmp", size=size, mode=0o1777), ops.Tmpfs("/run", size=_RUN_SIZE)]
    if socket is not None:  # connect(2) needs no writable mount, and chmod(2) of the host's socket would
        layers.append(ops.RoBind(socket, "/run/bridge.sock", nofollow=True))
    layers.append(ops.RemountRo("/run"))
    layers += [ops.RoBind(host, path, nofollow=True) for path, host in sorted(binds.items())]
    layers.append(ops.Bind(work, "/workspace", nofollow=True))
    if has_host_network and os.path.isfile("/etc/resolv.conf") and _is_file(f"{root}/etc/resolv.conf"):
        layers.append(ops.RoBind(os.path.realpath("/etc/resolv.conf"), "/etc/resolv.conf", optional=True))
    layers += [ops.Mask(f"/proc/{name}", optional=True) for name in _MASKED]
    if _is_file(f"{root}/{MANIFEST}"):
        layers.append(ops.Mask(f"/{MANIFEST}", optional=True))
    return layers


def _wishes(wishes: dict[str, Any], network: object) -> dict[str, Any]:
    """Return the policy's fields apart from its mounts. Their defaults are a workspace's."""
    if "unshare" in wishes:
        raise PolicyError("unshare", "can't be chosen: a root file system comes with all namespaces")
    if wishes.get("tools_bin") is not None:
        raise PolicyError("tools_bin", "isn't there in a root file system; give the directory as runtime=")
    if wishes.get("nested"):
        raise PolicyError("nested", "doesn't go with this: /proc would have to show what it must not show here")
    chosen = {"inherit_env": False, "new_session": True, "seccomp": "default"} | wishes
    chosen = {"workdir": "/workspace", "home": "/workspace"} | chosen
    limits = chosen.get("limits", Limits())
    if isinstance(limits, Limits):
        chosen["limits"] = with_small(replace(limits, core_size=0) if limits.core_size is None else limits)
    if network == "host" and "landlock" not in wishes:
        # Its scopes keep commands from the host's abstract unix sockets, which no mount hides. The caller hasn't wished
        # for it. Policy.workspace(network="host") uses them too where the kernel has them, and demands them nowhere. So
        # the loss is accepted, not in silence: degrade has it, and so have lost and not_enforced of what has run. With
        # the caller's own landlock=True it is demanded.
        chosen["landlock"] = True
        chosen["degrade"] = frozenset(wishes.get("degrade", ())) | {"landlock"}
    return chosen


def _environment(env: Any, binds: Mapping[str, str], uid: object, passed: Any) -> Any:
    first = [f"{path}/bin" for path, host in sorted(binds.items()) if os.path.isdir(f"{host}/bin") and path != "/agent"]
    user = _USERS.get(uid, str(uid)) if isinstance(uid, int) else ""
    built = {
        "PATH": ":".join(dict.fromkeys([*first, *PATH.split(":")])),
        "USER": user,
        "LANG": "C.UTF-8",
        "TERM": "dumb",
    }
    pairs = env.items() if isinstance(env, Mapping) else env
    if isinstance(pairs, str) or not isinstance(pairs, Iterable):
        return pairs  # the policy says what is wrong with it
    taken = passed if isinstance(passed, tuple | list | set | frozenset) else ()
    return (*(pair for pair in built.items() if pair[0] not in taken), *pairs)


def _dev(size: int | None) -> tuple[ops.Op, ...]:
    """Return a /dev in which only shm can be written to."""
    layers = (
        ops.Tmpfs("/dev/shm", size=size, mode=0o1777) if isinstance(op, ops.Dir) else op
        for op in ops.Dev("/dev").primitives()
    )
    return (*layers, ops.RemountRo("/dev"))


# ---- the caller's paths


def _directory(names: Resolution, field: str, path: object) -> str:
    real = names.existing(field, path)
    if not os.path.isdir(real):
        raise PolicyError(field, f"{real} is no directory")
    if real == "/":
        raise PolicyError(field, "'/' is the whole file system of this machine")
    return real


def _socket(names: Resolution, path: object) -> str:
    real = names.existing("bridge", path)
    if not stat.S_ISSOCK(os.stat(real).st_mode):
        raise PolicyError("bridge", f"{real} is no unix socket")
    return real


def _is_file(path: str) -> bool:
    try:
        return stat.S_ISREG(os.lstat(path).st_mode)
    except OSError:
        return False


def _check_runtime(path: str) -> None:
    for own in (*MOUNT_POINTS, "/sys"):
        if path != "/agent" and (path == "/" or is_below(path, own)):
            raise PolicyError("runtime", f"{path} lies in {own}: choose another path, such as /usr/local/runtime")


def _check_apart(work: str, others: Mapping[str, list[str]]) -> None:
    """Refuse a workspace by which commands could change what they may only read, or what runs outside."""
    own = [sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix, PACKAGE]
    named = dict(others) | {"the running Python": [os.path.realpath(path) for path in own]}
    for what, paths in named.items():
        for path in paths:
            if is_below(path, work):
                raise PolicyError("workspace", f"{work} contains {path} ({what}), which commands could change there")


def _check_mount_point(field: str, path: str, sources: Mapping[str, str]) -> None:
    """Refuse a mount point that doesn't exist: none can be made in a read-only root."""
    above = max((top for top in sources if is_below(path, top)), key=len)
    at = sources[above]
    for name in path[len(above) :].strip("/").split("/"):
        at = f"{at}/{name}"
        try:
            mode = os.lstat(at).st_mode
        except OSError as error:
            raise PolicyError(
                field, f"{path} can't be mounted: {at}: {error.strerror}; build() makes it by mount_points=[{path!r}]"
            ) from None
        if not stat.S_ISDIR(mode):
            kind = "a link: name the path that it leads to" if stat.S_ISLNK(mode) else "no directory"
            raise PolicyError(field, f"{path} can't be mounted: {at} is {kind}")
