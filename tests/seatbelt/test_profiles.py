"""The profiles that policies come to, whole: profiles/*.sb, with explain() in comments before the text.

After a change that is meant to change profiles, write them again and review the diff:

    NSBOX_SNAPSHOTS=write pytest tests/seatbelt/test_profiles.py
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from nsbox_seatbelt import scheme
from nsbox_seatbelt.evaluator import Evaluator
from nsbox_seatbelt.linter import left_open, lint
from nsbox_seatbelt.macs import EXACT, MAC, ROOT, profile, values, workspace
from nsbox_seatbelt.sbpl import rules

from nsbox import Filter, Host, Limits, Policy, RoBind, UnavailableError, explain
from nsbox._backends import compile_policy
from nsbox._backends.seatbelt_rules import CLOSED, COMMON, DEVICES, EXCEPTIONS, NETWORK
from nsbox._backends.seatbelt_rules import PRESETS as SETS
from nsbox._plan.sbpl import with_port
from nsbox._policy.policy import PRESETS

REPO = "/Users/me/repo"
GOLDEN: dict[str, tuple[Policy, Host]] = {
    "workspace": (workspace(), MAC),
    "network": (workspace(network="host"), MAC),
    "network-list": (workspace(network=["*.files.example", "!old.files.example", "db.corp:5432"]), MAC),
    "presets": (workspace(network="host", seatbelt=PRESETS), MAC),
    "read-write": (workspace(read=["/opt/sdk", "/Users/me/data", f"{REPO}/vendor"], write=["/Users/me/out"]), MAC),
    "deny": (workspace(deny=[f"{REPO}/.env", f"{REPO}/a/b/secret.key", "/opt/private"]), MAC),
    "deny-exact": (workspace(deny=[f"{REPO}/.env", f"{REPO}/a/b/secret.key", "/opt/private"]), EXACT),
    "nested": (workspace(read=[f"{REPO}/ro"], write=[f"{REPO}/ro/rw"], deny=[f"{REPO}/ro/rw/no"]), EXACT),
    "read-everything": (workspace(read=["/"]), MAC),
    "other-names": (workspace("/System/Volumes/Data/Users/me/repo", read=["/var/data", "/tmp/shared"]), MAC),
    "spellings": (workspace("/users/ME/Repo"), replace(MAC, spellings=(("/users/ME/Repo", REPO),))),
    "venv-in-workspace": (workspace("/Users/me"), MAC),
    "root": (workspace(), ROOT),
    "host": (Policy.host(), MAC),
    "host-no-network": (Policy.host(network="none", new_session=True), MAC),
    "limits": (workspace(limits=Limits(cpu_seconds=10, open_files=64, file_size="1M")), MAC),
    "helper": (workspace(), replace(MAC, seatbelt_ways=("helper",))),
}
DIRECTORY = Path(__file__).parent / "profiles"


def golden(policy: Policy, host: Host) -> str:
    comments = "".join(f";; {line}".rstrip() + "\n" for line in explain(policy, host).split("\n"))
    return f"{comments}\n{profile(policy, host).profile}"


@pytest.mark.parametrize("name", GOLDEN)
def test_golden(name: str) -> None:
    """The profile, and what explain() says, is exactly what the file has."""
    text = golden(*GOLDEN[name])
    file = DIRECTORY / f"{name}.sb"
    if os.environ.get("NSBOX_SNAPSHOTS") == "write":
        file.write_text(text)
    assert text == file.read_text()


def test_no_other_golden_profiles() -> None:
    """Each file belongs to a policy above."""
    assert {path.stem for path in DIRECTORY.iterdir()} == set(GOLDEN)


@pytest.mark.parametrize("name", GOLDEN)
def test_lint(name: str) -> None:
    """The linter has nothing to say about them."""
    op = profile(*GOLDEN[name])
    assert lint(op.profile, values(op)) == []
    assert left_open(op.profile) == [] or "(allow default)" in op.profile


@pytest.mark.parametrize("name", GOLDEN)
def test_scheme(name: str) -> None:
    """A real TinyScheme, of which libsandbox has a copy, understands each as our parser does."""
    op = profile(*GOLDEN[name])
    assert len(scheme.load(op.profile, values(op))) == len(rules(op.profile))


# ---- what is in all of them


def test_nothing_leads_out() -> None:
    """Services that act outside, or in the user's name, can't be asked; nor by any preset."""
    op = profile(workspace(network="host", seatbelt=PRESETS))
    model = Evaluator(op.profile, values(op))
    for name in (
        *("com.apple.coreservices.launchservicesd", "com.apple.coreservices.appleevents", "com.apple.SecurityServer"),
        *("com.apple.securityd.xpc", "com.apple.pasteboard.1", "com.apple.windowserver.active", "com.apple.tccd"),
        *("com.apple.xpc.launchd.domain.system", "com.apple.lsd.mapdb", "com.apple.hiservices-xpcservice"),
    ):
        assert not model.allows("mach-lookup", global_name=name), name
    for operation in (
        "job-creation",
        "lsopen",
        "appleevent-send",
        "mach-register",
        "file-link",
        "file-clone",
        "nvram*",
    ):
        assert not model.allows(operation, path="/Users/me/repo/x"), operation
    assert not model.allows("mach-lookup", xpc_service_name="com.example.service")
    assert model.allows("mach-lookup", global_name="com.apple.system.opendirectoryd.libinfo")


def test_own_processes_only() -> None:
    """Signals and questions about processes reach those of the same sandbox, and no others."""
    op = profile(workspace())
    model = Evaluator(op.profile, values(op))
    for operation in ("signal", "process-info-pidinfo", "process-info-rusage"):
        assert model.allows(operation, target="same-sandbox")
        assert not model.allows(operation, target="others")
    op = profile(workspace(seatbelt=PRESETS))
    for name in ("kern.procargs2", "kern.procargs2.1", "kern.procargs.1"):  # arguments and environments
        assert not Evaluator(op.profile, values(op)).allows("sysctl-read", sysctl_name=name)


def test_what_is_allowed_by_default() -> None:
    """(deny default) leaves some operations open: each is denied before it is allowed for some; without, the linter tells."""
    op = profile(workspace())
    model = Evaluator(op.profile, values(op))
    assert not model.allows("nvram*") and not model.allows("iokit-get-properties")
    assert not model.allows("file-map-executable", "/Users/me/other")
    without = "\n".join(line for line in op.profile.split("\n") if not line.startswith("(deny process-info*"))
    assert "process-info*" in left_open(without)
    assert Evaluator(without, values(op)).allows("process-info-pidinfo", target="others")


def test_reading_is_not_changing() -> None:
    """What changes a file by a descriptor for reading, keeps it from being removed, or types into a terminal, is refused."""
    op = profile(workspace(read=["/opt/sdk"]))
    model = Evaluator(op.profile, values(op))
    assert not model.allows("system-fcntl", fcntl_command=80) and not model.allows("system-fcntl", fcntl_command=110)
    for operation in ("file-write-flags", "file-write-acl", "file-write-setugid"):
        assert not model.allows(operation, f"{REPO}/x")
    assert model.allows("file-ioctl", "/dev/ttys001", ioctl_command=1)
    assert not model.allows("file-ioctl", "/dev/ttys001", ioctl_command=0x80017472)


def test_one_path_by_two_names() -> None:
    """Where two wishes are about the same path, by another name or spelling, deny wins over write, and that over read."""
    host = replace(EXACT, spellings=(("/Users/me/ODD", f"{REPO}/odd"),))
    other = f"/System/Volumes/Data{REPO}/odd"
    op = profile(workspace(read=[f"{REPO}/odd"], deny=[other]), host)
    assert not Evaluator(op.profile, values(op)).allows("file-read-data", f"{REPO}/odd/x")
    op = profile(workspace(write=["/Users/me/ODD"], deny=[other]), host)
    assert not Evaluator(op.profile, values(op)).allows("file-write-data", f"{REPO}/odd/x")


def test_all_readable_but() -> None:
    """What is denied just below the root is so where all else is readable."""
    op = profile(workspace(read=["/"], deny=["/opt", "/Volumes"]), replace(EXACT, directories=()))
    model = Evaluator(op.profile, values(op))
    for path in ("/opt", "/opt/x", "/Volumes/x", "/private/tmp/x", "/private/var/folders/zz/other/T/x"):
        assert not model.allows("file-read-data", path), path
    assert model.allows("file-read-data", "/Users/other/x")


def test_own_code_is_read_only() -> None:
    """The interpreter and nsbox are read-only in a writable directory, also when the caller spells that in another way.

    The helper program, which is executed outside, is so even where the interpreter's directory is to be written to.
    """
    own = {"prefixes": (f"{REPO}/.venv",), "package": f"{REPO}/.venv/lib/nsbox"}
    host = replace(MAC, spellings=(("/users/ME/Repo", REPO),), **own)
    for policy in (workspace("/users/ME/Repo"), workspace(REPO), workspace(REPO, write=[f"{REPO}/.venv"])):
        op = profile(policy, host)
        model = Evaluator(op.profile, values(op))
        assert not model.allows("file-write-data", f"{REPO}/.venv/lib/nsbox/_helper")
        assert not model.allows("file-write-unlink", f"{REPO}/.venv/lib/nsbox/_helper")
        assert not model.allows("file-write-unlink", f"{REPO}/.venv/lib")
        assert model.allows("file-read-data", f"{REPO}/.venv/lib/nsbox/_helper")
        assert model.allows("file-write-data", f"{REPO}/x")
        assert model.allows("file-write-data", f"{REPO}/.venv/x") is (len(policy.write) == 2)


def test_secrets() -> None:
    """Root's secrets are hidden, also in what is writable, and so are data of services where packages are readable."""
    op = profile(workspace("/private/etc"), ROOT)
    assert not Evaluator(op.profile, values(op)).allows("file-read-data", "/private/etc/master.passwd")
    op = profile(workspace())
    model = Evaluator(op.profile, values(op))
    assert model.allows("file-read-data", "/opt/homebrew/bin/x")
    assert not model.allows("file-read-data", "/opt/homebrew/var/postgresql/x")


def test_links() -> None:
    """A link on the way to the interpreter can be followed: its name is known, not what else is beside it."""
    host = replace(MAC, links=("/Users/me/.local/share/uv/python/cpython-3.12",))
    op = profile(workspace(), host)
    model = Evaluator(op.profile, values(op))
    assert model.allows("file-read-metadata", host.links[0], vnode_type="SYMLINK")
    assert model.allows("file-read-metadata", "/Users/me/.local/share/uv")
    assert not model.allows("file-read-data", f"{host.links[0]}/x")
    assert not model.allows("file-read-metadata", "/Users/me/.local/share/uv/other")


def test_network() -> None:
    """Without a network there is no address, not even on loopback; with it there is, but no sockets of other programs."""
    for wish, expected in (("none", False), ("host", True)):
        op = profile(workspace(network=wish))
        model = Evaluator(op.profile, values(op))
        for address in ("192.0.2.1:443", "127.0.0.1:80"):
            assert model.allows("network-outbound", protocol="tcp", remote=address) is expected
            assert model.allows("network-bind", protocol="udp", local=address) is expected
        assert model.allows("network-outbound", path="/private/var/run/mDNSResponder") is expected
        assert not model.allows("network-outbound", path="/private/var/run/docker.sock")
        assert model.allows("network-outbound", path=f"{REPO}/s")


def test_network_list() -> None:
    """One port of loopback is open, which is the proxy's: no other address, no server, and nobody who tells names."""
    op = profile(workspace(network=["a.example"]))
    model = Evaluator(with_port(op.profile, 3128), values(op))
    assert model.allows("network-outbound", protocol="tcp", remote="127.0.0.1:3128")
    for profiled in (model, Evaluator(op.profile, values(op))):
        for address in ("192.0.2.1:3128", "127.0.0.1:80", "127.0.0.1:3129", "192.0.2.1:443"):
            assert not profiled.allows("network-outbound", protocol="tcp", remote=address)
        for address in ("127.0.0.1:3128", "127.0.0.1:0", "192.0.2.1:80"):
            assert not profiled.allows("network-bind", protocol="tcp", local=address)
            assert not profiled.allows("network-inbound", protocol="tcp", local=address)
        for path in ("/private/var/run/mDNSResponder", "/private/var/run/docker.sock"):
            assert not profiled.allows("network-outbound", path=path)
    assert not Evaluator(op.profile, values(op)).allows("network-outbound", protocol="tcp", remote="127.0.0.1:3128")


def test_null_is_a_device() -> None:
    """What is written to /dev/null is written to that device only: not to a file that was put in its place."""
    op = profile(workspace())
    model = Evaluator(op.profile, values(op))
    assert model.allows("file-write-data", "/dev/null", vnode_type="CHARACTER-DEVICE")
    assert not model.allows("file-write-data", "/dev/null", vnode_type="REGULAR-FILE")


def test_reasons() -> None:
    """Each set of permissions has its reason, and presets are known to Policy by the names that they have."""
    for entry in (
        *CLOSED,
        *EXCEPTIONS,
        *COMMON,
        *DEVICES,
        *NETWORK,
        *(entry for sets in SETS.values() for entry in sets),
    ):
        assert entry.about or entry.operations
    assert all(entry.about for entry in (*CLOSED, *EXCEPTIONS, *COMMON, *(sets[0] for sets in SETS.values())))
    assert tuple(sorted(SETS)) == PRESETS


# ---- what can't be granted


@pytest.mark.parametrize(
    ("policy", "wish"),
    [
        (workspace(tmp_size="1M"), "tmp"),
        (workspace(hostname="box"), "hostname"),
        (workspace(uid=5), "ids"),
        (workspace(gid=5), "ids"),
        (workspace(ids="full"), "ids"),
        (workspace(landlock=True), "landlock"),
        (workspace(seccomp="hardened"), "seccomp"),
        (workspace(seccomp=Filter()), "seccomp"),
        (workspace(limits=Limits(memory="1G")), "limits.memory"),
        (workspace(limits=Limits(total_memory="1G")), "limits.total_memory"),
        (workspace(limits=Limits(cpus=1)), "limits.cpus"),
        (workspace(limits=Limits(processes=5)), "limits.processes"),
    ],
)
def test_wishes_that_cannot_be_granted(policy: Policy, wish: str) -> None:
    """They are errors that name them, unless the policy does without; then they are listed as not enforced."""
    with pytest.raises(UnavailableError) as caught:
        compile_policy(policy, MAC)
    assert f'degrade=["{wish}"]' in str(caught.value)
    reason = caught.value.reasons[0].what
    assert reason in compile_policy(policy.with_(degrade={wish}), MAC).not_enforced


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        (Policy.layers(RoBind("/", "/")), "mounts"),
        (workspace(nested=True), "another one"),
        (workspace(read=[f"/Users/me/{'x' * 1100}"]), "1000 bytes"),
        (workspace(deny=[f"{REPO}/{'x' * 700}"]), "too long to be hidden"),
        (workspace(read=["/Users/me/a\nb"]), "control characters"),
        (workspace(read=[os.fsdecode(b"/Users/me/\xff")]), "UTF-8"),
        (workspace(read=[f"/Users/me/{i}" for i in range(2000)]), "too many"),
    ],
)
def test_policies_that_cannot_be_had(policy: Policy, words: str) -> None:
    """What would make another command, or a profile that libsandbox can't take, is refused, whatever may be lacking."""
    with pytest.raises(UnavailableError, match=words):
        compile_policy(policy.with_(require="nothing", backend="seatbelt") if policy.base == "layers" else policy, MAC)


def test_isolated_is_more() -> None:
    """require="isolated" takes namespaces, and says what macOS hasn't."""
    with pytest.raises(UnavailableError, match="Darwin has no namespaces"):
        compile_policy(workspace(require="isolated"), MAC)


# ---- names of files are never a part of the text


NASTY = (
    '/Users/me/a"b',
    "/Users/me/)(allow default)(",
    '/Users/me/")(allow default)("',
    '/Users/me/#"^(.*)$"',
    "/Users/me/\\",
    "/Users/me/; comment",
    "/Users/me/é\u0301",
    "/Users/me/[a-z]*.+?{1}|^$",
    '/Users/me/(param "WRITE_0")',
)


@pytest.mark.parametrize("path", NASTY)
@pytest.mark.parametrize("kind", ["write", "read", "deny"])
def test_injection(path: str, kind: str) -> None:
    """A path with the language's own characters changes nothing but a parameter's value, and what is at that path."""
    wish = {kind: [path if kind != "deny" else f"{REPO}/{os.path.basename(path)}"]}
    plain = {kind: ["/Users/me/plain" if kind != "deny" else f"{REPO}/plain"]}
    op, usual = profile(workspace(**wish), EXACT), profile(workspace(**plain), EXACT)
    assert op.profile == usual.profile
    assert len(scheme.load(op.profile, values(op))) == len(rules(op.profile))
    model = Evaluator(op.profile, values(op))
    (target,) = wish[kind]
    assert model.allows("file-read-data", target) is (kind != "deny")
    assert model.allows("file-write-data", target) is (kind == "write")
    assert not model.allows("file-read-data", "/Users/me/other")
    assert not model.allows("file-write-data", "/private/etc/passwd")


@pytest.mark.parametrize("path", NASTY)
def test_injection_by_a_pattern(path: str) -> None:
    """Where case doesn't count, a denied name is a part of a pattern: it closes what it names, and opens nothing."""
    name = os.path.basename(path)
    op = profile(workspace(deny=[f"{REPO}/{name}"]), MAC)
    assert lint(op.profile, values(op)) == []
    model = Evaluator(op.profile, values(op))
    for spelled in (name, name.upper(), name.lower()):
        assert not model.allows("file-read-data", f"{REPO}/{spelled}"), spelled
        assert not model.allows("file-write-create", f"{REPO}/{spelled}"), spelled
    assert model.allows("file-read-data", f"{REPO}/plain")
    assert not model.allows("file-read-data", "/Users/me/other")
    assert len(scheme.load(op.profile, values(op))) == len(rules(op.profile))
