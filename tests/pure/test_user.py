"""Who the command is: what passwd and group say, where its home is, which of root's files are shown as its own."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nsbox_pure.hosts import DEBIAN, ROOT, SUBORDINATE, workspace

from nsbox import Bind, BindData, Host, Policy, RemountRo, Tmpfs
from nsbox._layout.user import accounts, home_ops, home_path, ssh_ops

BASE = b"root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/bin/false\n"
ME = replace(DEBIAN, user="me", group="us", shell="/bin/sh", passwd=BASE, groups=b"root:x:0:\nus:x:1000:\n")


def passwd(host: Host, policy: Policy | None = None, home: str = "/h") -> list[str] | None:
    op = accounts(policy or workspace(), host, home).get("/etc/passwd")
    if op is None:
        return None
    assert isinstance(op, BindData) and isinstance(op.data, bytes)
    assert op.read_only and op.mode == 0o644 and op.data.endswith(b"\n")
    return op.data.decode().splitlines()


def test_an_entry_that_is_right() -> None:
    """What needs no change isn't mounted."""
    right = replace(ME, passwd=BASE + b"me:x:1000:1000::/h:/bin/zsh\n")
    assert accounts(workspace(), right, "/h") == {}


@pytest.mark.parametrize("end", [b"\n", b"", b"\n\n"])
def test_another_home(end: bytes) -> None:
    """Only the home of the entry is another, whether or not the file ends with a newline."""
    host = replace(ME, passwd=BASE + b"me:x:1000:7:Me,,:/home/me:/bin/zsh" + end)
    assert passwd(host) == [*BASE.decode().splitlines(), "me:x:1000:7:Me,,:/h:/bin/zsh"]


def test_several_entries_of_one_uid() -> None:
    """All names of a uid have the home."""
    host = replace(ME, euid=0, passwd=BASE + b"toor:x:0:0::/root:/bin/sh\n")
    assert passwd(host) == ["root:x:0:0:root:/h:/bin/bash", "daemon:x:1:1::/:/bin/false", "toor:x:0:0::/h:/bin/sh"]


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_user_of_a_directory_service(end: bytes) -> None:
    """An entry that the file lacks is added, before what stands for NIS."""
    host = replace(ME, user_info="Me Myself", passwd=BASE + b"+::::::" + end)
    assert passwd(host) == [*BASE.decode().splitlines(), "me:x:1000:1000:Me Myself:/h:/bin/sh", "+::::::"]


def test_a_name_that_is_taken() -> None:
    """Another user's entry of the same name is dropped: the first entry of a name counts."""
    host = replace(ME, passwd=BASE + b"me:x:77:77::/home/other:/bin/sh\n")
    assert passwd(host) == [*BASE.decode().splitlines(), "me:x:1000:1000::/h:/bin/sh"]


def test_a_uid_that_nobody_has() -> None:
    """It gets a name of its own; so does the group."""
    found = accounts(workspace(uid=4321, gid=8765), replace(ME, user="", group=""), "/h")
    texts = [op.data for op in found.values() if isinstance(op, BindData) and isinstance(op.data, bytes)]
    assert texts[0].splitlines()[-1] == b"u4321:x:4321:8765::/h:/bin/sh"
    assert texts[1].splitlines()[-1] == b"g8765:x:8765:"


def test_an_unreadable_passwd() -> None:
    """It is one with root, nobody and the command's user; without such a file none is mounted."""
    assert [line.split(":")[0] for line in passwd(replace(ME, passwd=b"")) or ()] == ["root", "nobody", "me"]
    assert accounts(workspace(), replace(ME, passwd=None, groups=None), "/h") == {}


def test_lines_that_are_none() -> None:
    """Empty, short and odd lines are no entries, and do no harm."""
    host = replace(ME, passwd=b"\n:\nx:1000\n# 1000\nme:x:1000:1000::/x:/bin/sh:more\n\xff:x:1000:1::/y:/z\n")
    assert accounts(workspace(), host, "/h")["/etc/passwd"] == BindData(
        "/etc/passwd",
        b":\nx:1000\n# 1000\nme:x:1000:1000::/h:/bin/sh:more\n\xff:x:1000:1::/h:/z\n",
        mode=0o644,
        read_only=True,
    )


def test_a_hundred_thousand_lines() -> None:
    """They are all there; of more than 8 MiB only the system's and the user's own."""
    lines = b"".join(b"p%d:x:%d:1::/home/p%d:/bin/sh\n" % (i, 200000 + i, i) for i in range(100_000))
    told = passwd(replace(ME, passwd=BASE + lines))
    assert told is not None and len(told) == 100_003
    assert passwd(replace(ME, passwd=BASE + lines * 3)) == [*BASE.decode().splitlines(), "me:x:1000:1000::/h:/bin/sh"]


@pytest.mark.parametrize("home", ["/a:b", "/a\nb"])
def test_a_home_that_passwd_cannot_say(home: str) -> None:
    """Then passwd stays as it is."""
    assert passwd(ME, home=home) is None


@pytest.mark.parametrize(
    "policy",
    [
        workspace("/etc"),
        workspace(read=["/etc/passwd", "/etc/group"]),
        workspace(deny=["/etc"]),
        workspace(deny=["/etc/passwd", "/etc/group"]),
    ],
)
def test_a_policy_that_names_passwd(policy: Policy) -> None:
    """What the policy itself names, or hides, is that."""
    assert accounts(policy, replace(ME, user="other", euid=5), "/h") == {}


# ---- home


@pytest.mark.parametrize(
    ("policy", "home"),
    [
        (workspace(home="private"), "/home/me"),
        (workspace(home="private:x"), "/home/me"),
        (workspace("/home/me", home="private"), "/home/me-private"),
        (workspace("/home", home="private"), "/tmp/home-me"),
        (workspace("/home", write=["/tmp"], home="private"), "/dev/shm/home-me"),
        (workspace(read=["/"], home="private"), "/dev/shm/home-me"),
        (workspace("/srv", deny=["/home/me"], home="private"), "/home/me-private"),
        (workspace(home="workspace"), "/home/me/repo"),
        (workspace(home="tmp"), "/tmp"),
        (workspace(home="/x/y"), "/x/y"),
    ],
)
def test_where_it_is(policy: Policy, home: str) -> None:
    """A private home is at the first place that shows nothing of the host's."""
    assert home_path(policy, ME) == home


def test_what_it_is_made_of() -> None:
    """A tmpfs, or the directory that is kept; the way to what lies in it is read-only."""
    host = replace(ME, state="/home/me/.local/state/nsbox")
    deep = workspace("/home/me/a/b/c", home="private")
    assert home_ops(deep, host, None) == (
        {"/home/me": Tmpfs("/home/me", mode=0o700), "/home/me/a": Tmpfs("/home/me/a")},
        [RemountRo("/home/me/a")],
    )
    kept = workspace("/home/me/a", home="private:x")
    source = "/home/me/.local/state/nsbox/homes/x"
    assert home_ops(kept, host, None) == ({"/home/me": Bind(source, "/home/me", nofollow=True)}, [])
    assert home_ops(workspace(home="tmp"), host, None) == ({}, [])
    full = workspace("/srv", home="private", ids="full", uid=1234, gid=1234)
    assert home_ops(full, replace(ROOT, user="x"), 4096)[0] == {"/home/x": Tmpfs("/home/x", size=4096, mode=0o1777)}


# ---- root's files

FILES = (("/etc/ssh/ssh_config.d/20-x.conf", b"Host x\n"), ("/usr/lib/systemd/ssh_config.d/y.conf", b"Host y\n"))


def test_files_of_root_s() -> None:
    """They are shown as the command's own where root is nobody inside, and nowhere else."""
    user = replace(ME, ssh_files=FILES)
    shown = {path: BindData(path, data, mode=0o644, read_only=True) for path, data in FILES}
    assert ssh_ops(workspace(), user) == shown
    assert ssh_ops(Policy.host(), user) == shown
    assert ssh_ops(workspace(ids="full"), replace(SUBORDINATE, ssh_files=FILES)) == shown
    root = replace(ROOT, ssh_files=FILES)
    assert ssh_ops(workspace(), replace(root, kernel_id=7)) == shown
    for policy in (workspace(), workspace(ids="full"), workspace(uid=5), Policy.host()):
        assert ssh_ops(policy, root) == {}


def test_files_that_are_not_shown() -> None:
    """What the policy hides, names or shows elsewhere isn't brought in by this."""
    user = replace(ME, ssh_files=(*FILES, ("/srv/ssh.conf", b"")))
    assert {*ssh_ops(workspace(deny=["/etc/ssh"]), user)} == {FILES[1][0]}
    assert {*ssh_ops(workspace("/etc"), user)} == {FILES[1][0]}
