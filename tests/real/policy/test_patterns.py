"""Patterns in deny and read: what they match is looked up at each spawn, and never in part."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import nsbox
from nsbox import AccessError, Policy, PolicyError, Sandbox
from nsbox._lookup.matches import MOST_MATCHES
from nsbox._policy.losses import LOSSES

FILES = (".env", "prod.env", "notes.md", "app/[id]/page.tsx", "app/i/page.tsx", "app/x/page.tsx")
FILES += ("deep/a/b/key.pem", "deep/key.pem", "deep/a/key.txt", "secrets/one", "secrets/two/three")


@pytest.fixture
def ws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A workspace, which is the current directory."""
    ws = tmp_path / "ws"
    for name in FILES:
        (ws / name).parent.mkdir(parents=True, exist_ok=True)
        (ws / name).write_text(f"{name}\n")
    monkeypatch.chdir(ws)
    return ws


def read(policy: Policy | Sandbox, *names: str) -> set[str]:
    """Return which of the files a command can read."""
    script = 'for f; do cat "$f" >/dev/null 2>&1 && echo "$f"; done; true'
    done = nsbox.run(["sh", "-c", script, "sh", *names], policy=policy, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines())


@pytest.mark.parametrize(
    ("pattern", "hidden"),
    [
        ("*.env", {".env", "prod.env"}),
        ("?otes.md", {"notes.md"}),
        ("[np]*", {"prod.env", "notes.md"}),
        ("[!n]*.*", {"prod.env"}),
        ("**/*.pem", {"deep/a/b/key.pem", "deep/key.pem"}),
        ("deep/**/key.*", {"deep/a/b/key.pem", "deep/key.pem", "deep/a/key.txt"}),
        ("deep/*/key.*", {"deep/a/key.txt"}),
        ("secrets/**", {"secrets/one", "secrets/two/three"}),
        ("**/**/three", {"secrets/two/three"}),
        ("s*s", {"secrets/one", "secrets/two/three"}),
        ("app/[id]/page.tsx", {"app/[id]/page.tsx", "app/i/page.tsx"}),
        ("./deep/../*.md", {"notes.md"}),
        ("none*", set()),
    ],
)
def test_deny(ws: Path, pattern: str, hidden: set[str]) -> None:
    """A pattern hides what it matches, a name that is there literally too, and nothing else; can_read() says the same."""
    policy = Policy.workspace(ws, deny=[pattern])
    assert read(policy, *FILES) == {*FILES} - hidden
    assert {name for name in FILES if policy.can_read(ws / name)} == {*FILES} - hidden


def test_each_spawn(ws: Path) -> None:
    """What has come since the last command is hidden from the next one, cold and warm."""
    policy = Policy.workspace(ws, deny=["**/*.env"])
    with Sandbox(policy) as box:
        for face in (policy, box):
            assert read(face, "new.env", "deep/new.env") == set()
            for name in ("new.env", "deep/new.env"):
                (ws / name).write_text("1")
            assert read(face, "new.env", "deep/new.env", "notes.md") == {"notes.md"}
            assert not box.can_read("new.env")
            for name in ("new.env", "deep/new.env"):
                (ws / name).unlink()
        assert not box.can_write("other.env")
        with pytest.raises(AccessError):
            box.write("other.env", "1")


def test_deny_pattern_wins(ws: Path, tmp_path: Path) -> None:
    """A pattern of deny hides what another list names too, and what is below."""
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib/a.env").write_text("1")
    policy = Policy.workspace(
        ws,
        read=[tmp_path / "lib", tmp_path / "lib/a.env"],
        write=["secrets/two"],
        deny=[tmp_path / "lib/*.env", "sec*"],
    )
    assert read(policy, f"{tmp_path}/lib/a.env", "secrets/one", "secrets/two/three", "notes.md") == {"notes.md"}
    assert not policy.can_write("secrets/two/new")


def test_read(ws: Path, tmp_path: Path) -> None:
    """In read a pattern shows what it matches, read-only inside of what is writable; a literal name is meant alone."""
    for name in ("docs/a.md", "docs/b.md", "docs/c.txt", "page/[id]/x", "page/i/x"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    named = [f"{tmp_path}/{name}" for name in ("docs/a.md", "docs/b.md", "docs/c.txt", "page/[id]/x", "page/i/x")]
    policy = Policy.workspace(ws, read=[tmp_path / "docs/*.md", tmp_path / "page/[id]/x", "*.md"])
    assert read(policy, *named) == {*named[:2], named[3]}
    assert nsbox.run("echo 1 >> notes.md", shell=True, policy=policy, stderr=nsbox.DEVNULL).returncode != 0
    assert nsbox.run("mv notes.md other.md", shell=True, policy=policy, stderr=nsbox.DEVNULL).returncode != 0


def test_write_takes_none(ws: Path, tmp_path: Path) -> None:
    """In write a pattern is refused, and a name that is there is a name."""
    with pytest.raises(PolicyError, match=r"write: .*patterns are for read and deny"):
        Policy.workspace(ws, write=[tmp_path / "out*"])
    (tmp_path / "out[1]").mkdir()
    assert f"{tmp_path}/out[1]" in Policy.workspace(ws, write=[tmp_path / "out[1]"]).write


def test_nothing_matched(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """explain() says which entries hide nothing, and each is an error with strict=True, now and later."""
    told = nsbox.explain(Policy.workspace(ws, deny=["*.evn", "secretes", "*.md"]))
    assert "warning: deny" in told and f"{ws}/*.evn matches nothing" in told and "secretes isn't there" in told
    assert f"deny {ws}/*.md matches {ws}/notes.md" in told
    for name in ("*.evn", "secretes"):
        with pytest.raises(PolicyError, match=r"deny: .*hides nothing"):
            Policy.workspace(ws, deny=[name], strict=True)
        with pytest.raises(PolicyError, match=r"deny: .*hides nothing"):
            Policy.workspace(ws, strict=True).with_(deny=[name])
    policy = Policy.workspace(ws, deny=["*.md"], strict=True)
    assert read(policy, "notes.md") == set()
    (ws / "notes.md").unlink()
    with pytest.raises(PolicyError, match="matches nothing"):
        nsbox.run(["true"], policy=policy)


def test_secret_files(ws: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SECRET_FILES hides them in all that the policy shows, from wherever it is made, also with strict=True."""
    lib = tmp_path / "lib"
    for name in (ws / ".aws/credentials", ws / "deep/.netrc", lib / "sub/id_rsa", lib / "x"):
        name.parent.mkdir(parents=True, exist_ok=True)
        name.write_text("1")
    monkeypatch.chdir("/")
    policy = Policy.workspace(ws, read=[lib], deny=nsbox.SECRET_FILES, strict=True)
    names = [f"{ws}/{name}" for name in (".env", ".aws/credentials", "deep/.netrc", "deep/a/b/key.pem", "notes.md")]
    names += [f"{lib}/sub/id_rsa", f"{lib}/x"]
    assert read(policy, *names) == {f"{ws}/notes.md", f"{lib}/x"}


def test_too_many(ws: Path) -> None:
    """More matches than can be mounted are an error that says what to do, and so are more entries than are looked at."""
    (ws / "logs").mkdir()
    for i in range(MOST_MATCHES + 1):
        (ws / f"logs/{i}.log").touch()
    with pytest.raises(PolicyError, match=r"logs/\*\.log matches more than .*name their directory"):
        nsbox.run(["true"], policy=Policy.workspace(ws, deny=["logs/*.log"]))
    assert read(Policy.workspace(ws, deny=["log*"]), "logs/1.log", "notes.md") == {"notes.md"}


def test_too_many_entries(ws: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The walk is bounded: beyond that nothing starts, rather than with a part of it hidden."""
    monkeypatch.setattr("nsbox._lookup.matches.MOST_ENTRIES", 10)
    with pytest.raises(PolicyError, match=r"more than 10 entries below .*name a narrower directory"):
        nsbox.run(["true"], policy=Policy.workspace(ws, deny=["**/*.zip"]))
    assert read(Policy.workspace(ws, deny=["secrets/**/three"]), "secrets/two/three") == set()


def test_links(ws: Path, tmp_path: Path) -> None:
    """No link is followed; one that is matched, and leads to what is shown, is an error: a mask would hide neither."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "far.env").write_text("1")
    (ws / "out").symlink_to(outside)
    (ws / "x.env").symlink_to(outside / "far.env")  # leads nowhere, for commands
    policy = Policy.workspace(ws, deny=["**/*.env"])
    assert f"{outside}/far.env" not in nsbox.explain(policy)
    assert read(policy, ".env", "x.env", "notes.md") == {"notes.md"}
    (ws / "y.env").symlink_to("notes.md")
    with pytest.raises(PolicyError, match=rf"deny: {ws}/y.env, which .* matches, is a link to {ws}/notes.md"):
        nsbox.run(["true"], policy=policy)
    assert read(policy.with_(deny=["**/*.env", "notes.md"]), "y.env", "notes.md") == set()


def test_moved_away(ws: Path) -> None:
    """Where a directory before the wildcard has become a link, nothing starts."""
    policy = Policy.workspace(ws, deny=["deep/*.none"])
    nsbox.run("mv deep d2; ln -s d2 deep", shell=True, policy=policy, check=True)
    with pytest.raises(PolicyError, match=r"has become a link|is, by a symlink"):
        nsbox.run(["true"], policy=policy)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read all")
def test_closed_directory(ws: Path) -> None:
    """A directory that can't be looked into is hidden as a whole: its owner could open it again."""
    (ws / "closed").mkdir()
    (ws / "closed/a.env").write_text("1")
    (ws / "closed").chmod(0)
    try:
        script = "chmod 700 closed; cat closed/a.env"
        done = nsbox.run(script, shell=True, policy=Policy.workspace(ws, deny=["**/*.env"]), capture_output=True)
        assert done.stdout == b""
    finally:
        (ws / "closed").chmod(0o700)


def test_odd_names(ws: Path) -> None:
    """Names with blanks, new lines and bytes that are no text are matched as any others."""
    for name in (b"a b.env", b"x\ny.env", b"\xff.env"):
        Path(os.fsdecode(bytes(ws) + b"/" + name)).write_text("1")
    done = nsbox.run("cat *.env", shell=True, policy=Policy.workspace(ws, deny=["*.env"]), capture_output=True)
    assert done.stdout == b""


def test_start_is_hidden(ws: Path) -> None:
    """A pattern that hides the workspace itself is an error."""
    with pytest.raises(PolicyError, match=r"deny: hides .*, which commands work in"):
        nsbox.run(["true"], policy=Policy.workspace(ws, deny=[ws.parent / "w*"]))


@pytest.mark.parametrize("face", ["cold", "warm", "session", "landlock"])
def test_same_path(ws: Path, tmp_path: Path, face: str) -> None:
    """On the same path deny wins over read, and over write; lists come from several sources."""
    for name in ("hooks.json", "more"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").write_text("1")
    shown = Policy.workspace(ws, read=["notes.md", tmp_path / "hooks.json"], write=[tmp_path / "more"])
    policy = shown.with_(deny=["notes.md", tmp_path / "hooks.json", tmp_path / "more"])
    names = ("notes.md", f"{tmp_path}/hooks.json/f", f"{tmp_path}/more/f", ".env")
    if face == "landlock":
        if nsbox.probe().landlock_abi < 2:
            pytest.skip("needs Landlock of version 2 or later")
        policy = shown.with_(deny=[tmp_path / "hooks.json", tmp_path / "more"], read=[tmp_path / "hooks.json"])
        policy = policy.with_(backend="landlock", degrade=LOSSES)
        assert read(policy, *names[1:]) == {".env"}
        return
    if face == "cold":
        assert read(policy, *names) == {".env"}
    else:
        with Sandbox(policy) as box:
            if face == "warm":
                assert read(box, *names) == {".env"}
            else:
                with box.session() as session:
                    assert session.shell(f"cat {' '.join(names)}").stdout == ".env\n"
    assert not policy.can_read("notes.md") and not policy.can_write(tmp_path / "more/f")


def test_children(ws: Path) -> None:
    """A child keeps the parent's patterns, and can't show what they hide."""
    parent = Policy.workspace(ws, deny=["*.env"])
    child = parent.child(read=["deep"], write=[])
    assert set(parent.deny) <= set(child.deny)
    with pytest.raises(PolicyError):
        parent.child(read=["prod.env"])


def test_fifos_that_read_matches(ws: Path, tmp_path: Path) -> None:
    """A FIFO could be written to though it is read-only: a pattern of read passes it over, a name is an error."""
    logs = tmp_path / "logs"
    (logs / "deep").mkdir(parents=True)
    for name in ("pipe", "deep/pipe", "deep/p[1]"):
        os.mkfifo(logs / name)
    for name in ("plain", "deep/plain"):
        (logs / name).write_text("x")
    (logs / "link").symlink_to("plain")
    for pattern, found in {"*": {"deep", "plain"}, "p*": {"plain"}, "deep/*": {"deep/plain"}, "**/pipe": set()}.items():
        policy = Policy.workspace(ws, read=[f"{logs}/{pattern}"])
        shown = nsbox.run(["find", logs, "-maxdepth", "1", "-type", "p"], policy=policy, stdout=nsbox.PIPE, text=True)
        assert shown.stdout == ""
        told = [line for line in nsbox.explain(policy).splitlines() if line.startswith("names ")]
        assert told == [
            f"names       read {logs}/{pattern} matches {', '.join(sorted(f'{logs}/{name}' for name in found))}"
            if found
            else f"names       warning: read {logs}/{pattern} matches nothing"
        ]
    for name in ("pipe", "deep/p[1]"):
        with pytest.raises(PolicyError, match=r"is a FIFO, which commands could write to"):
            Policy.workspace(ws, read=[logs / name])


def test_a_fifo_that_has_come_to_have_the_name(ws: Path, tmp_path: Path) -> None:
    """The same where a name that is meant literally has become one since. In a writable directory it is passed over."""
    path = tmp_path / "p[1]"
    path.mkdir()
    policy = Policy.workspace(ws, read=[path])
    path.rmdir()
    os.mkfifo(path)
    with pytest.raises(PolicyError, match="is a FIFO"):
        nsbox.run(["true"], policy=policy)
    os.mkfifo(ws / "q[1]")
    assert nsbox.run(["true"], policy=Policy(base="workspace", write=[ws], read=[ws / "q[1]"])).returncode == 0


def test_links_in_what_is_denied(ws: Path, tmp_path: Path) -> None:
    """A link on the way to what is shown isn't made in what deny hides, by a name or by a pattern. Control: it is."""
    (tmp_path / "real/lib").mkdir(parents=True)
    (tmp_path / "names").mkdir()
    (tmp_path / "names/lib").symlink_to(tmp_path / "real/lib")
    policy = Policy.workspace(ws, read=[tmp_path / "names/lib"])
    script = f"ls -A {tmp_path}/names"
    for deny, told in (([], "lib\n"), ([tmp_path / "names"], ""), ([f"{tmp_path}/nam*"], "")):
        done = nsbox.run(script, shell=True, policy=policy.with_(deny=deny), capture_output=True, text=True)
        assert done.stdout == told
