"""A policy's network list: what it may be given as, what it does to a plan, and which backends can't have one."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from nsbox_pure import refused
from nsbox_pure.hosts import DEBIAN, ROOT, VENV, workspace

import nsbox
from nsbox import (
    Bind,
    BindData,
    Dev,
    Dir,
    File,
    Host,
    Hostname,
    Mask,
    Network,
    Policy,
    Proc,
    RoBind,
    Symlink,
    Tmpfs,
    UnavailableError,
    explain,
)
from nsbox._backends import choose, compile_policy
from nsbox._layout.network import enforced, listed, not_enforced
from nsbox._lookup.host import host_for
from nsbox._lookup.network import with_network_files
from nsbox._plan.sbpl import Seatbelt, with_port
from nsbox._policy.variables import CERTIFICATES, PROXIES
from nsbox._spawn.environment import Environment

LIST = ["api.example:443", "!gist.example"]
LINUX = replace(DEBIAN, landlock_abi=7, bwrap="/usr/bin/bwrap", bwrap_version=(0, 11), bwrap_binds_fds=True)
MAC = Host(system="Darwin", kernel=(23, 0), seatbelt_ways=("compiled",), temporary="/private/var/t")


def data(policy: Policy, host: Host, dest: str) -> str:
    """Return what a plan mounts over a file; "" if it leaves it alone."""
    found = [op.data for op in compile_policy(policy, host).ops if isinstance(op, BindData) and op.dest == dest]
    assert all(isinstance(text, bytes) for text in found)
    return "".join(text.decode() for text in found if isinstance(text, bytes))


# ---- the wish


@pytest.mark.parametrize(
    "make",
    [
        lambda network: workspace(network=network),
        lambda network: workspace().with_(network=network),
        lambda network: Policy.layers(RoBind("/", "/"), network=network),
        lambda network: Policy.layers(RoBind("/", "/"), unshare={"net"}, network=network),
        lambda network: Policy(network=network),
        lambda network: Policy.layers(RoBind("/", "/")).with_(network=network),
    ],
)
def test_each_constructor(make) -> None:
    """A list, a tuple, a Network and "public" are the same everywhere; what is kept is a Network."""
    for given in (LIST, tuple(LIST), Network(allow=tuple(LIST)), Network(allow=LIST)):
        policy = make(given)
        assert policy.network == Network(allow=tuple(LIST))
        assert hash(policy) == hash(make(LIST)) and policy == make(LIST)
        assert pickle.loads(pickle.dumps(policy)) == policy
        assert policy.with_(hostname=None).network == policy.network
    assert make("public").network == Network(allow=("*:*",))


def test_words_stay() -> None:
    """The words that were there before are what they were."""
    assert workspace().network == "none"
    assert Policy.host().network == "host"
    assert Policy.layers(RoBind("/", "/")).network == "host"
    assert Policy.layers(RoBind("/", "/"), unshare={"net"}).network == "none"
    refused("network", lambda: Policy.layers(RoBind("/", "/"), unshare={"net"}, network="host"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("api.example:443", 'network=["api.example:443"]'),
        ("*.api.example", 'network=["*.api.example"]'),
        ("localhost", 'network=["localhost"]'),
        ("10.0.0.0/8:22", 'network=["10.0.0.0/8:22"]'),
        ("https://api.example/v1", "is a URL"),
        ("bridge", "must be one of none, host, public, or a list such as network="),
        ("", "must be one of none, host, public"),
        (["!gist.example"], "'*:*'"),
        (["none"], "'none:443'"),
        (["host", "api.example"], "'host:443'"),
        (["public"], "'public:443'"),
        ([3], "must be a str"),
        ({"api.example"}, "is a set, must be a str, a list of entries or nsbox.Network"),
        ({"allow": ["api.example"]}, "is a dict"),
        (None, "is a NoneType"),
        (True, "is a bool"),
        (b"host", "is a bytes"),
        (["api.example", "\x1b[31mx.example"], "control character"),
        (["api.example\n"], "control character"),
    ],
)
def test_other_values(given: object, said: str) -> None:
    """Each error names the field, and says what to write instead."""
    error = refused("network", lambda: workspace(network=given))
    assert said in error.problem
    assert error.problem.isprintable()


def test_the_host_policy_has_no_list() -> None:
    """Policy.host() contains no files, so that a list would promise more than holds."""
    for given in (LIST, "public", Network(allow=["api.example"])):
        error = refused("network", lambda given=given: Policy.host(network=given))
        assert "Policy.workspace()" in error.problem


def test_ten_thousand_entries() -> None:
    """They are taken, and one more isn't."""
    many = [f"h{i}.example:{1 + i}" for i in range(10_000)]
    policy = workspace(network=many)
    assert isinstance(policy.network, Network) and len(policy.network.entries) == 10_000
    assert len(policy.child(network=many[::2]).network.entries) == 5_000
    refused("network", lambda: workspace(network=[*many, "one.example"]))


# ---- the plan


@pytest.mark.parametrize("host", [DEBIAN, ROOT, VENV])
def test_plan(host: Host) -> None:
    """An own net namespace, the list, and the two files by which names are looked up."""
    policy = workspace(network=LIST)
    plan = compile_policy(policy, replace(host, hostname="machine"))
    assert "net" in plan.namespaces and plan.network == policy.network == listed(policy)
    assert data(policy, host, "/etc/resolv.conf") == "nameserver 198.19.0.53\nsearch .\n"
    assert (
        data(policy, replace(host, hostname="machine"), "/etc/hosts") == "127.0.0.1 localhost ip6-localhost machine\n"
    )
    for other in ("none", "host"):
        plain = compile_policy(workspace(network=other), host)
        assert plain.network is None and ("net" in plain.namespaces) == (other == "none")
        assert not [op for op in plain.ops if isinstance(op, BindData) and "hosts" in op.dest]


def test_host_names() -> None:
    """The policy's own is the sandbox's; one that no hosts file can have is left out."""
    assert data(workspace(network=LIST, hostname="box"), DEBIAN, "/etc/hosts").endswith(" box\n")
    assert data(workspace(network=LIST, hostname="a b"), DEBIAN, "/etc/hosts").endswith("localhost\n")
    assert data(workspace(network=LIST, hostname="a\nb"), DEBIAN, "/etc/hosts").count("\n") == 1
    layers = Policy.layers(RoBind("/", "/"), Hostname("inner"), unshare={"uts"}, network=LIST)
    assert data(layers, DEBIAN, "/etc/hosts").endswith(" inner\n")


def test_files_behind_links() -> None:
    """They are mounted where /etc/resolv.conf leads, without the machine's own file there."""
    stub = "/run/systemd/resolve/stub-resolv.conf"
    host = replace(DEBIAN, resolv_conf=stub, network_files=(("/etc/resolv.conf", stub),))
    assert data(workspace(network=LIST), host, stub).startswith("nameserver 198.19.0.53")
    ops = compile_policy(workspace(network=LIST), host).ops
    assert not [op for op in ops if isinstance(op, RoBind) and op.dest == stub]
    assert not data(workspace(network=LIST), host, "/etc/hosts")


def test_denied_files_stay_denied() -> None:
    """What deny hides is hidden, and what permissions keep from others isn't: it is another file."""
    hidden = workspace(network=LIST, deny=["/etc/hosts"])
    assert not data(hidden, DEBIAN, "/etc/hosts")
    assert Mask("/etc/hosts", optional=True, nofollow=True) in compile_policy(hidden, DEBIAN).ops
    private = replace(ROOT, private=("/etc/resolv.conf",))
    assert data(workspace(network=LIST), private, "/etc/resolv.conf")
    assert Mask("/etc/resolv.conf", optional=True) not in compile_policy(workspace(network=LIST), private).ops


def test_nothing_to_mount_on() -> None:
    """Without a file there is no place for the name server's address: an error, before anything is done."""
    host = replace(DEBIAN, network_files=(("/etc/hosts", "/etc/hosts"),))
    for policy in (workspace(network=LIST), Policy.layers(RoBind("/usr", "/usr"), network=LIST)):
        with pytest.raises(UnavailableError, match=r"/etc/resolv\.conf.*put an empty file there"):
            compile_policy(policy, host)


@pytest.mark.parametrize(
    ("details", "said"),
    [
        (nsbox.Details(userns=9), "leave userns out"),
        (nsbox.Details(userns2=9), "leave userns2 out"),
        (nsbox.Details(capabilities=("CAP_NET_ADMIN",)), "leave capabilities out"),
        (nsbox.Details(share={"pid"}), "leave share="),  # type: ignore[arg-type]
    ],
)
def test_namespaces_that_no_relay_can_serve(details: nsbox.Details, said: str) -> None:
    """Those of others, those that the command may change, and those without a pid 1."""
    policy = Policy.layers(RoBind("/", "/"), network=LIST, details=details)
    with pytest.raises(UnavailableError, match=said):
        compile_policy(policy, DEBIAN)
    assert compile_policy(policy.with_(network="none"), DEBIAN).network is None


# ---- where the files are


def test_links_on_the_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What isn't shown is made: the way is there, whatever it leads by, and without a file too."""
    from nsbox._lookup import network as lookup_network

    (tmp_path / "etc").mkdir()
    (tmp_path / "run").mkdir()
    (tmp_path / "var").mkdir()
    (tmp_path / "var/run").symlink_to("../run")
    (tmp_path / "etc/resolv.conf").symlink_to("../var/run/resolver/stub.conf")
    (tmp_path / "etc/hosts").symlink_to("hosts.d")  # in what is shown: nothing can be made there
    monkeypatch.setattr(lookup_network, "RESOLV_CONF", f"{tmp_path}/etc/resolv.conf")
    monkeypatch.setattr(lookup_network, "HOSTS", f"{tmp_path}/etc/hosts")
    host = replace(DEBIAN, directories=((f"{tmp_path}/etc", None),), ways=(("/x", "y"),))
    found = with_network_files(workspace(network=LIST), host)
    assert found.network_files == ((f"{tmp_path}/etc/resolv.conf", f"{tmp_path}/run/resolver/stub.conf"),)
    assert found.ways == (("/x", "y"), (f"{tmp_path}/var/run", "../run"))
    (tmp_path / "etc/hosts").unlink()
    (tmp_path / "etc/hosts").touch()
    (tmp_path / "etc/resolv.conf").unlink()
    found = with_network_files(workspace(network=LIST), host)
    assert found.network_files == ((f"{tmp_path}/etc/hosts", f"{tmp_path}/etc/hosts"),)
    assert found.ways == host.ways


def tree(path: Path) -> Path:
    """Make a root that has both files."""
    (path / "etc").mkdir()
    (path / "etc/resolv.conf").write_text("")
    (path / "etc/hosts").write_text("")
    return path


def places(*ops: nsbox.Op) -> dict[str, str]:
    """Return where both files are found in layers of these."""
    return dict(with_network_files(Policy.layers(*ops, network=LIST), DEBIAN).network_files)


BOTH = {"/etc/resolv.conf": "/etc/resolv.conf", "/etc/hosts": "/etc/hosts"}


def test_layers_with_files(tmp_path: Path) -> None:
    """Of a bind, of its parts, and made by the policy itself."""
    root = str(tree(tmp_path))
    assert places(RoBind(root, "/")) == BOTH
    assert places(Bind(f"{root}/etc", "/etc")) == BOTH
    assert places(RoBind(root, "/"), Tmpfs("/tmp"), Dev("/dev"), Proc("/proc")) == BOTH
    made = (File("/etc/resolv.conf", b""), BindData("/etc/hosts", b""))
    assert places(Tmpfs("/"), Dir("/etc"), *made) == BOTH
    assert places(RoBind(f"{root}/etc/hosts", "/etc/resolv.conf")) == {"/etc/resolv.conf": "/etc/resolv.conf"}


def test_layers_without_files(tmp_path: Path) -> None:
    """Not there, hidden by a later op, or no file."""
    root = str(tree(tmp_path))
    (tmp_path / "empty").mkdir()
    assert places(RoBind("/usr", "/usr")) == {}
    assert places(RoBind(root, "/"), Tmpfs("/etc")) == {}
    assert places(RoBind(root, "/"), RoBind(f"{root}/empty", "/etc")) == {}
    assert places(RoBind(root, "/"), Mask("/etc/resolv.conf")) == {"/etc/hosts": "/etc/hosts"}
    assert places(RoBind(root, "/"), RoBind(f"{root}/empty", "/etc/hosts")) == {"/etc/resolv.conf": "/etc/resolv.conf"}


def test_layers_with_links(tmp_path: Path) -> None:
    """Links lead where they lead inside: never by this machine's own root."""
    root = tree(tmp_path)
    (root / "run").mkdir()
    (root / "run/r.conf").write_text("")
    (root / "etc/resolv.conf").unlink()
    (root / "etc/resolv.conf").symlink_to("../run/r.conf")
    assert places(RoBind(str(root), "/"))["/etc/resolv.conf"] == "/run/r.conf"
    assert "/etc/resolv.conf" not in places(RoBind(str(root), "/"), Tmpfs("/run"))
    (root / "etc/hosts").unlink()
    (root / "etc/hosts").symlink_to("/etc/passwd")  # which the machine has, and this root hasn't
    assert "/etc/hosts" not in places(RoBind(str(root), "/"))
    assert places(RoBind(f"{root}/run", "/real"), Symlink("/real/r.conf", "/etc/resolv.conf")) == {
        "/etc/resolv.conf": "/real/r.conf"
    }
    (root / "etc/hosts").unlink()
    (root / "etc/hosts").symlink_to("hosts")
    assert "/etc/hosts" not in places(RoBind(str(root), "/"))


def test_layers_behind_links(tmp_path: Path) -> None:
    """An op behind a link counts where that leads; a bind that may be missing covers nothing if it is."""
    root = tree(tmp_path)
    (root / "run").mkdir()
    (root / "real").mkdir()
    shown = RoBind(str(root), "/")
    assert places(shown, Symlink("/etc", "/l"), Tmpfs("/l")) == {}
    assert places(Dir("/etc"), Symlink("etc", "/l"), RoBind(f"{root}/etc", "/l")) == BOTH
    assert places(shown, RoBind(f"{root}/gone", "/etc", optional=True)) == BOTH
    (root / "real/hosts").write_text("")
    (root / "up").symlink_to("../etc")
    assert places(shown, Bind(f"{root}/real", "/up")) == {"/etc/hosts": "/etc/hosts"}


def test_the_same_facts_are_the_same_host() -> None:
    """What is prepared for a host is known by the object."""
    policy = workspace(network=LIST)
    assert with_network_files(policy, DEBIAN) is with_network_files(policy, DEBIAN)


# ---- the environment


def test_proxies_of_the_caller_are_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list says what is reached; certificates are needed as with the host's network."""
    for name in PROXIES:
        monkeypatch.setenv(name, "http://proxy.example:3128")
    monkeypatch.setenv("NODE_EXTRA_CA_CERTS", "/etc/ssl/certs/ca-certificates.crt")
    given = Policy.workspace(tmp_path, network=LIST)
    for policy in (given, Policy.layers(RoBind("/", "/"), network=LIST), given.with_(inherit_env=True)):
        host = host_for(policy)
        environment = Environment(policy, host, compile_policy(policy, host))
        text = b"\n".join(environment.of(None)[0].items)
        assert environment.variables(dict(os.environ)).keys().isdisjoint(PROXIES)
        assert b"proxy.example" not in text and b"PATH=" in text
    passed = given.with_(pass_env=["https_proxy"])
    host = host_for(passed)
    kept = Environment(passed, host, compile_policy(passed, host)).variables({"https_proxy": "x", "http_proxy": "y"})
    assert kept["https_proxy"] == "x" and "http_proxy" not in kept
    assert {*CERTIFICATES} <= {*given.taken_from_caller()}
    assert {*PROXIES}.isdisjoint(given.taken_from_caller())
    assert {*PROXIES} <= {*given.with_(network="host").taken_from_caller()}


# ---- backends


@pytest.mark.parametrize(
    ("backend", "host", "besides"),
    [
        ("landlock", LINUX, {"attributes", "home", "processes", "tmp"}),
        ("bwrap", LINUX, set()),
    ],
)
def test_backends_without_lists(backend: str, host: Host, besides: set[str]) -> None:
    """Each refuses a list, and says that it could be none; with degrade it is none, and says so."""
    policy = Policy(base="workspace", write=("/w",), workdir="/w", network=LIST, backend=backend, degrade=besides)
    with pytest.raises(UnavailableError) as caught:
        compile_policy(policy, host)
    assert f"{backend}: network: no list" in str(caught.value) and '"network"' in str(caught.value)
    plan = compile_policy(policy.with_(degrade={*besides, "network"}), host)
    same = compile_policy(policy.with_(network="none"), host)
    assert plan.network is None and plan.namespaces == same.namespaces
    assert (plan.ops, plan.programs, plan.ruleset) == (same.ops, same.programs, same.ruleset)
    assert [line for line in plan.not_enforced if f"{backend}: network" in line]
    assert not [line for line in same.not_enforced if f"{backend}: network" in line]


def test_macos() -> None:
    """One port of 127.0.0.1 is open, where a proxy has the list; explain() says for whom. There is no UDP."""
    policy = Policy(
        base="workspace", write=("/w",), workdir="/w", network=["api.example", "!b.example"], backend="seatbelt"
    )
    plan, none = compile_policy(policy, MAC), compile_policy(policy.with_(network="none"), MAC)
    assert plan.network == policy.network
    (op,), (closed,) = plan.ops, none.ops
    assert isinstance(op, Seatbelt) and isinstance(closed, Seatbelt)
    more = [line for line in with_port(op.profile, 3128).splitlines() if line not in closed.profile.splitlines()]
    assert [line for line in more if line[0] == "("] == ['(allow network-outbound (remote ip "localhost:3128"))']
    enforced, left = "\n".join(plan.enforced), "\n".join(plan.not_enforced)
    assert "nsbox-proxy" in enforced and "the hello names the server" in enforced
    assert "for programs that don't use a proxy there is none" in left and "domain fronting" in left
    datagrams = policy.with_(network=["api.example", "time.example:123/udp"])
    with pytest.raises(UnavailableError, match=r"'time\.example:123/udp': on macOS"):
        compile_policy(datagrams, MAC)
    plan = compile_policy(datagrams.with_(degrade={"network"}), MAC)
    assert plan.network == datagrams.network and any("no UDP" in line for line in plan.not_enforced)


def test_passthrough() -> None:
    """What contains nothing enforces no list, not even where everything may be missing."""
    policy = workspace(network=LIST, backend="passthrough", require="nothing", degrade=["network"])
    with pytest.raises(UnavailableError, match="network='host'"):
        compile_policy(policy, DEBIAN)
    last = workspace(network=LIST, require="nothing")
    with pytest.raises(UnavailableError, match="no list would hold"):
        compile_policy(last, replace(DEBIAN, core_problem="there is no C core"))


def test_the_choice_is_no_weaker_one() -> None:
    """A machine without namespaces refuses a list; it takes no backend that would forget it."""
    host = replace(LINUX, max_user_namespaces=0, bwrap="")
    assert choose(workspace(network=LIST), host)[0] == "landlock"
    with pytest.raises(UnavailableError, match="landlock: network: no list"):
        compile_policy(workspace(network=LIST), host)


def test_in_bubblewraps_words() -> None:
    """There are none."""
    plan = compile_policy(workspace(network=LIST), DEBIAN)
    refused("network", lambda: plan.to_bwrap(lambda _: 9))


# ---- what it says


def test_explain() -> None:
    """Entries as they are understood, one a line."""
    text = explain(workspace(network=["API.Example", "10.0.0.0/8:*", "!x.example"]), DEBIAN)
    assert "network     allows api.example:443\n" in text
    assert "network     allows 10.0.0.0/8:*\n" in text
    assert "network     denies x.example:*\nnetwork     denies x.example:*/udp\n" in text
    assert "network     allows nothing; what commands try is recorded\n" in explain(workspace(network=[]), DEBIAN)
    assert "network     " not in explain(workspace(), DEBIAN)


@pytest.mark.parametrize(
    ("network", "said"),
    [
        (["api.example"], "domain fronting"),
        (["api.example:80"], "plain HTTP"),
        (["*.api.example"], "wildcard"),
        ("public", "wildcard"),
        (["time.example:123/udp"], "UDP"),
        (["localhost:8000"], "127.0.0.1"),
        (["0.0.0.0/0:*"], "0.0.0.0/0:* contains 169.254.169.254"),
        (["169.254.0.0/16:80"], "169.254.0.0/16:80 contains 169.254.169.254"),
        (Network(allow=["api.example"], tls="off"), "tls='off'"),
        (Network(allow=["api.example"], tls="sni-ech"), "encrypted hello"),
    ],
)
def test_what_is_left_open(network, said: str) -> None:
    """The plan names the hole that each entry leaves, and only where there is such an entry."""
    assert any(said in line for line in not_enforced(workspace(network=network)))
    if said != "domain fronting":
        assert not any(said in line for line in not_enforced(workspace(network=["api.example:443"])))


def test_what_is_enforced() -> None:
    """By whom, and how much."""
    small = Network(allow=["api.example"], connections=3, bytes="1K")
    text = "\n".join(enforced(workspace(network=small)))
    assert "(the kernel)" in text and "(nsbox-net)" in text
    assert "limits: 3 connections" in text and "limits: 1024 bytes" in text
    assert "private networks" in text
    assert "private networks" not in "\n".join(enforced(workspace(network=Network(allow=["a.example"], private=True))))
