"""What a built environment takes from the caller's: locale and zone, certificates, proxies, the order of PATH."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest
from nsbox_testing import needs

import nsbox
from nsbox import Policy
from nsbox._policy.variables import CERTIFICATES, LOCALE, PROXIES


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., dict[str, str]]:
    """Return the environment of a command, of a caller with these variables more."""

    def look(policy: Policy, **more: str) -> dict[str, str]:
        for name, value in more.items():
            monkeypatch.setenv(name, value)
        done = nsbox.run(["/usr/bin/env", "-0"], policy=policy, capture_output=True, text=True, check=True)
        return dict(pair.split("=", 1) for pair in done.stdout.split("\0")[:-1])

    return look


def test_what_has_no_secrets(workspace: Path, seen: Callable[..., dict[str, str]]) -> None:
    """The zone, all of the locale, and wishes about colours are passed; nothing that only looks alike is."""
    given = dict.fromkeys(LOCALE, "C.UTF-8") | {"TZ": "Asia/Tokyo", "LANGUAGE": "de:en", "COLORTERM": "truecolor"}
    given |= {"NO_COLOR": "1", "FORCE_COLOR": "3"}
    other = {"LC_SECRET": "s", "TZ_TOKEN": "s", "GH_TOKEN": "s", "EDITOR": "ed"}
    env = seen(Policy.workspace(workspace), **given, **other)
    assert {name: env.get(name) for name in given} == given
    assert not other.keys() & env.keys()


def test_zone(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program has the caller's time and letters."""
    monkeypatch.setenv("TZ", "XYZ-5")
    monkeypatch.setenv("LC_ALL", "C.UTF-8")
    monkeypatch.delenv("LANG", raising=False)
    command = "date +%Z; printf '\\303\\244\\n' | sed s/./X/g"
    done = nsbox.run(command, shell=True, policy=Policy.workspace(workspace), capture_output=True, text=True)
    assert done.stdout == "XYZ\nX\n"


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A directory with a file of certificates, and a link to it elsewhere."""
    place = tmp_path / "authority"
    place.mkdir(mode=0o700)
    (place / "ca.pem").write_text("CERTIFICATE\n")
    (tmp_path / "link.pem").symlink_to(place / "ca.pem")
    return place


@pytest.mark.parametrize("name", CERTIFICATES)
def test_certificates(name: str, workspace: Path, authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a network the variable and what it names are there, by a link too, read-only. Without, neither is."""
    for value in (authority / "ca.pem", authority.parent / "link.pem", authority):
        if value == authority and name in ("SSL_CERT_FILE", "NODE_EXTRA_CA_CERTS"):
            continue
        monkeypatch.setenv(name, str(value))
        look = f'cat "${name}"/ca.pem "${name}" 2> /dev/null; touch "${name}" 2> /dev/null || echo fixed'
        policy = Policy.workspace(workspace, network="host")
        done = nsbox.run(look, shell=True, policy=policy, capture_output=True, text=True)
        assert done.stdout == "CERTIFICATE\nfixed\n"
        done = nsbox.run(
            f"echo [${name}]; cat {value}", shell=True, policy=policy.with_(network="none"), capture_output=True
        )
        assert done.stdout == b"[]\n"


def test_several_directories_of_certificates(
    workspace: Path, authority: Path, seen: Callable[..., dict[str, str]]
) -> None:
    """SSL_CERT_DIR may name several."""
    value = f"{authority}:/etc:{authority}/none"
    assert seen(Policy.workspace(workspace, network="host"), SSL_CERT_DIR=value)["SSL_CERT_DIR"] == value


@pytest.mark.parametrize("what", ["home", "root", "planted", "denied", "directory"])
def test_no_more_than_certificates(
    what: str, workspace: Path, tmp_path: Path, authority: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A variable that names a home, or what a command's link leads to, shows nothing and isn't passed."""
    home = tmp_path / "me"
    home.mkdir()
    (home / "id").write_text("private\n")
    monkeypatch.setenv("HOME", str(home))
    (workspace / "planted").symlink_to(home / "id")
    value = {"home": home, "root": "/", "planted": workspace / "planted", "denied": home / "id", "directory": authority}
    monkeypatch.setenv("SSL_CERT_FILE", str(value[what]))
    policy = Policy.workspace(workspace, network="host", deny=[home / "id"] if what == "denied" else [])
    done = nsbox.run(
        f"echo [$SSL_CERT_FILE]; cat {home}/id", shell=True, policy=policy, stdout=subprocess.PIPE, text=True
    )
    assert done.stdout == "[]\n"


def test_proxies(workspace: Path, seen: Callable[..., dict[str, str]]) -> None:
    """They are passed with the host's network alone."""
    given = dict.fromkeys(PROXIES, "http://proxy.invalid:8080")
    env = seen(Policy.workspace(workspace, network="host"), **given)
    assert {name: env.get(name) for name in given} == given
    assert not given.keys() & seen(Policy.workspace(workspace)).keys()


# ---- PATH


def path_of(policy: Policy) -> list[str]:
    done = nsbox.run(["/usr/bin/env"], policy=policy, capture_output=True, text=True, check=True)
    return next(line[5:].split(":") for line in done.stdout.splitlines() if line.startswith("PATH="))


def own() -> str:
    return os.path.join(os.path.realpath(sys.prefix), "bin")


def test_order(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller's order, of what is there; the system's directories; then the interpreter that runs nsbox."""
    (tmp_path / "outside").mkdir()
    given = f"relative:{workspace}/node_modules/.bin:/usr/bin:{tmp_path}/outside::/bin"
    monkeypatch.setenv("PATH", given)
    path = path_of(Policy.workspace(workspace))
    assert path[:3] == [f"{workspace}/node_modules/.bin", "/usr/bin", "/bin"]
    assert {"/usr/local/bin", "/usr/sbin"} <= {*path} and len({*path}) == len(path)
    assert own() == "/usr/bin" or path[-1] == own() or own() in nsbox.probe().programs[:-1]
    assert not any("outside" in entry or not entry.startswith("/") for entry in path)
    (tmp_path / "tools").mkdir()
    assert path_of(Policy.workspace(workspace, tools_bin=tmp_path / "tools"))[0] == str(tmp_path / "tools")
    monkeypatch.setenv("PATH", f"{own()}:/usr/bin")  # a caller that has it in front wants it there
    assert path_of(Policy.workspace(workspace))[0] == own()


def test_without_a_path(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller without PATH is one with the system's."""
    monkeypatch.delenv("PATH")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    assert path_of(Policy.workspace(workspace))[:2] == ["/usr/local/sbin", "/usr/local/bin"]


@needs.module("ensurepip")
@pytest.mark.parametrize("name", [".venv", "venv"])
def test_venv_of_the_workspace(name: str, workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes first, as soon as it is there; so does one that is activated, unless nsbox's own is."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("VIRTUAL_ENV", os.path.realpath(sys.prefix))
    policy = Policy.workspace(workspace)
    assert path_of(policy)[0] == "/usr/bin"
    venv.create(workspace / name, symlinks=True)
    assert path_of(policy)[0] == f"{workspace}/{name}/bin"
    done = nsbox.run(["python", "-c", "import sys; print(sys.prefix)"], policy=policy, capture_output=True, text=True)
    assert done.stdout == f"{workspace}/{name}\n"
    venv.create(workspace / "other", symlinks=True)
    monkeypatch.setenv("VIRTUAL_ENV", str(workspace / "other"))
    assert path_of(policy)[:2] == [f"{workspace}/other/bin", f"{workspace}/{name}/bin"]


def test_system_python_s_modules(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`python3` is the caller's, not the one that runs nsbox."""
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    outside = subprocess.run(["sh", "-c", "command -v python3"], capture_output=True, text=True, check=False).stdout
    done = nsbox.run(
        "command -v python3", shell=True, policy=Policy.workspace(workspace), capture_output=True, text=True
    )
    assert not outside or done.stdout == outside


def test_explain_says_it(workspace: Path, authority: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Home, passwd, PATH and certificates are in what explain() says."""
    monkeypatch.setenv("CURL_CA_BUNDLE", str(authority / "ca.pem"))
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy.invalid")
    assert "https_proxy" not in nsbox.explain(Policy.workspace(workspace))
    text = nsbox.explain(Policy.workspace(workspace, network="host"))
    assert "https_proxy: the caller's" in text and "secret@" not in text
    for start in (
        "home        /home/",
        "passwd      ",
        "PATH        /",
        f"variable    CURL_CA_BUNDLE={authority}/ca.pem",
    ):
        assert any(line.startswith(start) for line in text.splitlines())
    assert f"bind        {authority}/ca.pem -> {authority}/ca.pem [ro, nofollow]" in text


# ---- certificates, and deny

FILES = ("ca.pem", "ca.key", "sub/more.pem", "plain/ca.crt")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the caller's certificates are, outside of any workspace."""
    for name in CERTIFICATES:
        monkeypatch.delenv(name, raising=False)
    for name in FILES:
        (tmp_path / "store" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "store" / name).write_text(f"{name}\n")
    (tmp_path / "store/link.pem").symlink_to("plain/ca.crt")
    return tmp_path / "store"


def seen_of(policy: Policy, store: Path) -> tuple[set[str], str]:
    """Return which of the files commands can read, and the value of the variable that they have."""
    script = 'for f; do cat "$f" >/dev/null 2>&1 && echo "$f"; done; echo "=$SSL_CERT_FILE$SSL_CERT_DIR"'
    paths = [str(store / name) for name in FILES]
    done = nsbox.run(["sh", "-c", script, "sh", *paths], policy=policy, capture_output=True, text=True, check=True)
    *found, value = done.stdout.splitlines()
    return {path.removeprefix(f"{store}/") for path in found}, value[1:]


@pytest.mark.parametrize(
    ("name", "deny"),
    [
        ("ca.pem", ["{store}/ca.pem"]),
        ("ca.pem", ["{store}/*.pem"]),
        ("ca.pem", ["{store}/../st*"]),
        ("ca.pem", ["**/*.pem"]),
        ("ca.pem", nsbox.SECRET_FILES),
        ("link.pem", ["{store}/*.pem"]),
        ("link.pem", ["{store}/**/*.crt"]),
        ("", ["**/*.key"]),
        ("", ["{store}/*.key"]),
        ("", ["{store}/sub"]),
        ("plain", ["{store}/**/pl?in"]),
        ("plain", ["**/plain"]),
    ],
)
@pytest.mark.parametrize("backend", ["namespaces", "landlock"])
def test_denied_certificates(
    backend: str, name: str, deny: list[str], workspace: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A deny wins, also by a pattern, over what is shown for a variable, which isn't passed then. Control: without."""
    monkeypatch.setenv("SSL_CERT_DIR" if name in ("", "plain") else "SSL_CERT_FILE", str(store / name))
    policy = Policy.workspace(workspace, network="host", backend=backend, require="nothing")
    shown, value = seen_of(policy, store)
    assert shown and value == str((store / name).resolve())
    denied = policy.with_(deny=[one.format(store=store) for one in deny])
    assert seen_of(denied, store) == (set(), "")
    assert "left out: what it names" in nsbox.explain(denied) and "left out: what it names" not in nsbox.explain(policy)


@pytest.mark.parametrize("deny", ["**/*.key", "{store}/plain/*.pem"])
def test_certificates_that_are_not_denied(
    deny: str, workspace: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other patterns leave them; a directory is shown as long as nothing in it is matched, which is looked up each time."""
    monkeypatch.setenv("SSL_CERT_FILE", str(store / "ca.pem"))
    policy = Policy.workspace(workspace, network="host", deny=[deny.format(store=store)])
    assert seen_of(policy, store) == ({"ca.pem"}, str(store / "ca.pem"))
    monkeypatch.delenv("SSL_CERT_FILE")
    monkeypatch.setenv("SSL_CERT_DIR", str(store / "plain"))
    policy = Policy.workspace(workspace, network="host", deny=["**/*.key"])
    assert seen_of(policy, store) == ({"plain/ca.crt"}, str(store / "plain"))
    (store / "plain/late.key").write_text("x\n")
    assert seen_of(policy, store) == (set(), "")


def test_certificates_of_the_system(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pattern below the workspace hides nothing of the system's own directories, nor the variable that names it."""
    monkeypatch.setenv("SSL_CERT_FILE", "/etc/passwd")
    policy = Policy.workspace(workspace, network="host", deny=["**/passwd"])
    script = "cat $SSL_CERT_FILE >/dev/null && echo $SSL_CERT_FILE"
    assert nsbox.run(script, shell=True, policy=policy, capture_output=True, text=True).stdout == "/etc/passwd\n"
