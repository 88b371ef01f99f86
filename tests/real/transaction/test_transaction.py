"""Transactions: the workspace as an overlay. How changes are brought in is tested by test_commit.py."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from nsbox_testing.running import python
from nsbox_testing.transactions import sh, told
from nsbox_testing.trees import taken

import nsbox
from nsbox import Change, ConflictError, Policy, PolicyError, Sandbox, Transaction

# ---- what commands see, and what is left of it


@pytest.mark.vm
def test_changes_are_kept_aside(tx: Transaction, box: Sandbox, filled: Path) -> None:
    """The next command of the transaction sees them; nobody else does; leaving drops them."""
    before = taken(filled)
    sh(tx, "echo new > file; rm -r directory; echo more > more")
    assert sh(tx, "cat file; ls") == "new\nfile\nlink\nmore\n"
    assert box.check_output(["cat", "file"], text=True) == "one\ntwo\nthree\n"
    assert taken(filled) == before
    tx.discard()
    assert taken(filled) == before


@pytest.mark.vm
def test_commit(tx: Transaction, filled: Path, store: Path) -> None:
    """All changes come into the workspace, and the transaction is over."""
    sh(tx, "echo new > file; rm -r directory; mkdir more; echo more > more/file; chmod 750 more")
    assert [str(change) for change in tx.commit()] == [
        "D directory/",
        "D directory/inner",
        "M file",
        "A more/",
        "A more/file",
    ]
    assert (filled / "file").read_text() == "new\n"
    assert (filled / "more" / "file").read_text() == "more\n"
    assert (filled / "more").stat().st_mode & 0o777 == 0o750
    assert sorted(os.listdir(filled)) == ["file", "link", "more"]
    assert os.listdir(store) == ["lock"]
    for use in (tx.diff, tx.patch, tx.commit, lambda: tx.run(["true"])):
        with pytest.raises(ValueError, match=r"the transaction is over: .* begin another by box.transaction\(\)"):
            use()
    tx.discard()  # as leaving does


def test_progress_of_a_commit(tx: Transaction, filled: Path) -> None:
    """A program is told of each change before it is copied; what that raises ends the commit before it has begun."""
    sh(tx, "mkdir -p made/below; echo x > made/below/file; echo y > other")
    before = taken(filled)

    def broken_off(done: int, total: int, path: str) -> None:
        raise InterruptedError(path)

    with pytest.raises((InterruptedError, nsbox.CommitError)):
        tx.commit(on_progress=broken_off)
    assert taken(filled) == before
    rows: list[tuple[int, int, str]] = []
    changes = tx.commit(on_progress=lambda *row: rows.append(row))
    # What is below a new directory is copied along with it.
    paths = [change.path for change in changes]
    assert [path for _, _, path in rows] == ["made", "other"]
    assert all(total == len(paths) and paths[done] == path for done, total, path in rows)
    assert (filled / "made/below/file").read_text() == "x\n"


def test_all_ways_to_start(tx: Transaction) -> None:
    """Each form that a Sandbox has, and whatever takes a policy."""
    add = "echo x >> count"
    tx.run(["sh", "-c", add], check=True)
    tx.shell(add, check=True)
    assert tx.call(["sh", "-c", add]) == 0
    tx.check_call(["sh", "-c", add])
    tx.check_output(["sh", "-c", add])
    with tx.Popen(["sh", "-c", add]):
        pass
    nsbox.run(["sh", "-c", add], policy=tx, check=True)

    async def both() -> None:
        await (await tx.create_subprocess_exec("sh", "-c", add)).wait()
        await (await tx.create_subprocess_shell(add)).wait()

    asyncio.run(both())
    nsbox.install()
    with nsbox.confined(tx):
        subprocess.run(add, shell=True, check=True, cwd=tx.workspace)
    assert sh(tx, "wc -l < count") == "10\n"
    assert told(tx) == ["A count"]


def test_commands_at_the_same_time(tx: Transaction) -> None:
    """They share the one overlay: what one writes, the other sees."""
    with tx.Popen(["sh", "-c", "echo here > new; cat; cat other"], stdin=-1, stdout=-1, text=True) as one:
        sh(tx, "while ! [ -e new ]; do sleep 0.01; done; echo there > other")
        assert one.communicate()[0] == "there\n"

    def work(name: str) -> None:
        for n in range(5):
            tx.shell(f"echo {n} >> {name}", check=True)

    threads = [threading.Thread(target=work, args=(f"thread-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sh(tx, "cat thread-* | wc -l") == "20\n"


def test_the_policy_holds(filled: Path, store: Path) -> None:
    """What is hidden stays so, what else is writable is written to at once, and the rest is as without."""
    (filled / ".env").write_text("secret")
    other = filled.parent / "other"
    other.mkdir()
    policy = Policy.workspace(filled, write=[filled, other], deny=[filled / ".env"])
    with Sandbox(policy) as box, box.transaction(dir=store) as tx:
        assert tx.shell("cat .env").returncode != 0
        assert tx.shell("touch /etc/x").returncode != 0
        sh(tx, f"echo x > {other}/x; echo y > y")
        assert (other / "x").exists()
        assert told(tx) == ["A y"]
        tx.commit()
    assert (filled / ".env").read_text() == "secret"


@pytest.mark.parametrize("change", [{"uid": 1234}, {"nested": True}, {"network": "host"}, {"seccomp": "off"}], ids=str)
def test_other_policies(filled: Path, store: Path, change: dict[str, object]) -> None:
    with Sandbox(Policy.workspace(filled, **change)) as box, box.transaction(dir=store) as tx:
        sh(tx, "echo x > x; rm file; id -u")
        assert told(tx) == ["D file", "A x"]
        tx.commit()
    assert (filled / "x").stat().st_uid == os.geteuid()


def test_of_the_host(filled: Path, store: Path) -> None:
    """With Policy.host() only the directory named is kept aside."""
    beside = filled.parent / "beside"
    with Sandbox(Policy.host()) as box:
        with pytest.raises(PolicyError, match="is needed"):
            box.transaction(dir=store)
        with box.transaction(filled, dir=store) as tx:
            tx.shell(f"echo x > {filled}/x; echo y > {beside}", check=True)
            assert told(tx) == ["A x"]
    assert beside.read_text() == "y\n"
    assert not (filled / "x").exists()


# ---- diff and patch


def test_diff(tx: Transaction) -> None:
    """Added, modified, deleted, renamed, with types and modes; what was only opened or touched isn't there."""
    sh(
        tx,
        "mkdir new; ln -s there new/link; mkfifo new/fifo; mv directory/inner moved; chmod 600 file; touch link;"
        " rmdir directory; echo x > directory",
    )
    assert tx.diff() == [
        Change("modified", "directory", "file", 0o644, None, "directory", 0o755),
        Change("modified", "file", "file", 0o600, None, "file", 0o644),
        Change("renamed", "moved", "file", 0o644, "directory/inner", "file", 0o644),
        Change("added", "new", "directory", 0o755),
        Change("added", "new/fifo", "fifo", 0o644),
        Change("added", "new/link", "symlink", 0o777, target="there"),
    ]
    sh(tx, "chmod 644 file; rm -r new directory; mkdir directory; mv moved directory/inner")
    assert told(tx) == []
    assert tx.patch() == ""
    assert tx.commit() == []


def test_patch(tx: Transaction) -> None:
    sh(tx, "sed -i s/two/2/ file; printf nonl > 'a b'; rm link; chmod +x directory/inner; printf '\\0' > binary")
    assert tx.patch() == (
        "diff --git a/a b b/a b\nnew file mode 100644\n--- /dev/null\n+++ b/a b\t\n@@ -0,0 +1 @@\n+nonl\n"
        "\\ No newline at end of file\n"
        "diff --git a/binary b/binary\nnew file mode 100644\nBinary files /dev/null and b/binary differ\n"
        "diff --git a/directory/inner b/directory/inner\nold mode 100644\nnew mode 100755\n"
        "diff --git a/file b/file\n--- a/file\n+++ b/file\n@@ -1,3 +1,3 @@\n one\n-two\n+2\n three\n"
        "diff --git a/link b/link\ndeleted file mode 120000\n--- a/link\n+++ /dev/null\n@@ -1 +0,0 @@\n-file\n"
        "\\ No newline at end of file\n"
    )
    assert "Binary files a/file and b/file differ" in tx.patch(max_size=4)
    with pytest.raises(PolicyError, match="max_size"):
        tx.patch(max_size="much")


# Changes a tree at random, by a seed; the same everywhere.
CHURN = """
import os, random, shutil, sys
random = random.Random(int(sys.argv[1]))
os.umask(0o22)
NAMES = ["a", "b", "c d", "\\u00e4", "e\\nf", "q\\"", "back\\\\slash", "g.txt"]
def paths(wanted):
    found = []
    for above, directories, files in os.walk("."):
        for name in directories if wanted == "d" else files:
            found.append(os.path.join(above, name))
    return sorted(found)
def some(wanted):
    found = paths(wanted)
    return random.choice(found) if found else None
def fresh():
    above = random.choice([".", *[p for p in paths("d") if not os.path.islink(p)]])
    return os.path.join(above, random.choice(NAMES) + str(random.randrange(30)))
def text():
    lines = [random.choice(["x", "y", "longer line", "", "caf\\u00e9"]) for _ in range(random.randrange(12))]
    return "\\n".join(lines) + random.choice(["", "\\n"])
for _ in range(int(sys.argv[2])):
    kind = random.choice(["new", "new", "mkdir", "write", "append", "rm", "rmtree", "mv", "chmod", "link", "symlink", "replace"])
    try:
        if kind == "new" or kind == "mkdir" or kind == "symlink":
            path = fresh()
            if os.path.lexists(path): continue
            if kind == "new": open(path, "w").write(text())
            elif kind == "mkdir": os.mkdir(path)
            else: os.symlink(random.choice(NAMES), path)
            continue
        path = some("d" if kind == "rmtree" else "f")
        if path is None: continue
        if kind == "rmtree": os.unlink(path) if os.path.islink(path) else shutil.rmtree(path)
        elif kind == "rm": os.unlink(path)
        elif kind == "mv": os.rename(path, fresh())
        elif os.path.islink(path): continue
        elif kind == "write": open(path, "w").write(text())
        elif kind == "append": open(path, "a").write(text())
        elif kind == "chmod": os.chmod(path, random.choice([0o644, 0o755, 0o600]))
        elif kind == "link": os.link(path, fresh())
        elif kind == "replace":
            open(path + ".tmp", "w").write(text()); os.rename(path + ".tmp", path)
    except (FileExistsError, IsADirectoryError, NotADirectoryError):
        pass
"""


def churn(tree: Path, seed: int, count: int) -> None:
    subprocess.run([sys.executable, "-I", "-c", CHURN, str(seed), str(count)], cwd=tree, check=True)


def without_links(tree: Path) -> dict[str, tuple[object, ...]]:
    """Return what is in a tree, whatever belongs together."""
    return {
        path: (kind, mode, what[0] if isinstance(what, tuple) else what)
        for path, (kind, mode, what) in taken(tree).items()
    }


@pytest.mark.parametrize("seed", range(12))
def test_random_changes(workspace: Path, tmp_path: Path, store: Path, seed: int) -> None:
    """What a commit makes of the workspace is what the same changes make of a copy; git makes the same of the patch."""
    churn(workspace, seed, 120)
    copy, patched = tmp_path / "copy", tmp_path / "patched"
    for other in (copy, patched):
        shutil.copytree(workspace, other, symlinks=True)
    churn(copy, seed + 1000, 80)
    with Sandbox(Policy.workspace(workspace)) as box, box.transaction(dir=store) as tx:
        done = tx.run(python(CHURN, str(seed + 1000), "80"), capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
        patch = tx.patch()
        tx.commit()
    assert without_links(workspace) == without_links(copy)
    if patch:
        git = ["git", "-c", "core.filemode=true", "apply", "--whitespace=nowarn"]
        done = subprocess.run(git, cwd=patched, input=os.fsencode(patch), capture_output=True, check=False)
        assert done.stderr.decode() == ""
    files = [  # git knows no directories, and of modes only whether a file can be executed
        {
            path: (mode[0], mode[1] & 0o100, mode[2])
            for path, mode in without_links(tree).items()
            if mode[0] != "directory"
        }
        for tree in (workspace, patched)
    ]
    assert files[0] == files[1]


def test_a_directory_made_again(tx: Transaction, filled: Path) -> None:
    """What was below it, at any depth, is gone, though it has the same names."""
    (filled / "directory" / "sub").mkdir()  # shines through: overlays see changes below
    (filled / "directory" / "sub" / "hidden").write_text("hidden")
    sh(tx, "rm -r directory; mkdir -p directory/sub; echo x > directory/sub/new")
    assert told(tx) == ["D directory/inner", "D directory/sub/hidden", "A directory/sub/new"]


def test_patches_that_would_take_long(workspace: Path, tmp_path: Path, store: Path) -> None:
    """Some lines over and over, or very many: what is different comes as one piece, and git takes that as well."""

    def fill(tree: Path, n: int) -> None:
        lines = [str(i * n % 121) for i in range(30_000)]
        (tree / "often").write_text("\n".join(["head", *lines, "tail"]))
        (tree / "many").write_text("\n".join(str(i * n) for i in range(30_000)))

    fill(workspace, 1)
    patched = tmp_path / "patched"
    shutil.copytree(workspace, patched)
    with Sandbox(Policy.workspace(workspace)) as box, box.transaction(dir=store) as tx:
        fill(tmp_path, 7)
        for name in ("often", "many"):
            tx.shell(f"cat > {name}", input=(tmp_path / name).read_text(), check=True)
        patch = tx.patch()
        tx.commit()
    assert patch.count("@@") == 4
    subprocess.run(["git", "apply"], cwd=patched, input=patch, text=True, check=True)
    assert taken(patched).keys() == taken(workspace).keys()
    assert (patched / "often").read_text() == (workspace / "often").read_text()
    assert (patched / "many").read_text() == (workspace / "many").read_text()


def test_the_mode_of_the_workspace(tx: Transaction, filled: Path) -> None:
    sh(tx, "chmod 700 .")
    assert told(tx) == ["M ./ (mode 0755 becomes 0700)"]
    tx.commit()
    assert filled.stat().st_mode & 0o777 == 0o700


# ---- conflicts


@pytest.mark.parametrize(
    ("inside", "outside", "expected"),
    [
        ("echo 1 > file", "echo 2 > file", [("file", "changed")]),
        ("echo 1 > file", "chmod 600 file", [("file", "changed")]),
        ("echo 1 > file", "mv directory/inner file", [("file", "changed")]),
        ("echo 1 >> file", "rm file", [("file", "deleted")]),
        ("rm file", "echo 2 > file", [("file", "changed")]),
        ("rm -r directory", "echo 2 > directory/new", [("directory", "changed"), ("directory/new", "changed")]),
        ("rm -r directory; mkdir directory", "echo 2 > directory/new", [("directory/new", "changed")]),
        ("echo 1 > new", "echo 2 > new", [("new", "changed")]),
        ("mkdir new; echo 1 > new/file", "echo 2 > new", [("new", "changed")]),
        ("echo 1 > directory/new", "rm -r directory", [("directory", "deleted")]),
        ("echo 1 > directory/new", "mv directory moved", [("directory", "deleted")]),
        ("ln -sf directory link", "ln -sf nowhere link", [("link", "changed")]),
        ("mv file moved", "echo 2 > file", [("file", "changed")]),
        ("rm link; echo 1 >> file", "rm file", [("file", "deleted")]),
        ("echo 1 > directory/new", "chmod 700 directory", [("directory", "changed")]),
        ("chmod 750 directory", "chmod 700 directory", [("directory", "changed")]),
        (
            "echo 1 > directory/inner",
            "mv directory d; mkdir e; cp -p file e/inner; mv e directory",
            [("directory", "changed")],
        ),
    ],
)
def test_conflicts(tx: Transaction, filled: Path, inside: str, outside: str, expected: list[tuple[str, str]]) -> None:
    """What was changed on both sides is reported, and nothing is done; the transaction goes on."""
    sh(tx, inside)
    subprocess.run(outside, shell=True, cwd=filled, check=True)
    before = taken(filled)
    with pytest.raises(ConflictError) as caught:
        tx.commit()
    assert set(expected) <= set(caught.value.conflicts)
    assert expected[0][0] in str(caught.value)
    assert taken(filled) == before
    assert told(tx)


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("echo 1 > file", "echo 2 > directory/inner"),
        ("echo 1 > new", "echo 2 > other; rm link"),
        ("echo 1 > directory/new", "echo 2 > directory/other"),
        ("mv file moved; echo more >> moved", "echo 2 > directory/other"),
        ("mv file moved", "echo 2 > other"),
        ("rm file", "rm file"),
        ("rm -r directory", "echo 2 > other"),
    ],
)
def test_no_conflicts(tx: Transaction, filled: Path, inside: str, outside: str) -> None:
    """What was changed elsewhere stays as it is."""
    sh(tx, inside)
    subprocess.run(outside, shell=True, cwd=filled, check=True)
    tx.commit()


def test_of_two_transactions_the_second_has_the_conflict(box: Sandbox, filled: Path, store: Path) -> None:
    with box.transaction(dir=store) as one, box.transaction(dir=store) as other:
        sh(one, "echo 1 > file; echo 1 > new")
        sh(other, "echo 2 > file; echo 2 > another")
        one.commit()
        with pytest.raises(ConflictError, match=r"file \(changed\)"):
            other.commit()
        assert (filled / "file").read_text() == "1\n"


def test_what_was_changed_just_before_is_no_conflict(box: Sandbox, filled: Path, store: Path) -> None:
    """Inodes are stamped by a clock with steps of milliseconds."""
    for n in range(5):
        (filled / "file").write_text(f"{n}")
        with box.transaction(dir=store) as tx:
            sh(tx, "echo more >> file")
            tx.commit()


@pytest.mark.as_root("only root works in another user's directory")
def test_another_users_workspace(filled: Path, policy: Policy, store: Path) -> None:
    """Commands get none of the owner's rights, as they do in a task; the hint says so, and what it says works."""
    for path in (filled, *filled.rglob("*")):
        os.chown(path, 12345, 12346, follow_symlinks=False)
    with Sandbox(policy, stock=0) as box:
        with box.transaction(dir=store) as transaction:
            for line in (
                "touch new",
                "touch new; ls",
                "echo fatal: detected dubious ownership in repository at x; exit 1",
            ):
                (hint,) = [one for one in transaction.shell(line).why if one.kind == "owner"]
                assert f"{filled} belongs to uid 12345, gid 12346" in hint.message
                assert "use a task" in hint.message
            assert not [one for one in transaction.shell("cat file; cat nothing").why if one.kind == "owner"]
        with box.task(dir=store) as task:
            assert task.shell("touch new").returncode == 0
    with (
        Sandbox(policy.with_(ids="full", uid=12345, gid=12346), stock=0) as box,
        box.transaction(dir=store) as transaction,
    ):
        assert transaction.shell("touch new").returncode == 0
        transaction.commit()
    assert (filled / "new").stat().st_uid == 12345
