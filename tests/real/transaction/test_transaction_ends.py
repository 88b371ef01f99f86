"""Transactions: how they end, and what can't be one."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from nsbox_testing.running import in_fork
from nsbox_testing.transactions import sh, told
from nsbox_testing.trees import taken

from nsbox import Policy, PolicyError, Sandbox, Transaction, UnavailableError
from nsbox import transaction as transactions
from nsbox._policy.losses import LOSSES
from nsbox._transaction import commit as transaction_commit

# ---- ends


def test_running_commands(tx: Transaction) -> None:
    """A commit waits for nobody; the end of the transaction kills them."""
    with tx.Popen(["sleep", "1000"]) as running:
        with pytest.raises(ValueError, match="still run"):
            tx.commit()
        tx.discard()
        assert running.wait() == -signal.SIGKILL


def test_an_exception_drops_it(box: Sandbox, filled: Path, store: Path) -> None:
    before = taken(filled)
    with pytest.raises(ZeroDivisionError), box.transaction(dir=store) as tx:
        sh(tx, "rm -rf *")
        _ = 1 / 0
    assert taken(filled) == before
    assert os.listdir(store) == ["lock"]


def test_unclosed(box: Sandbox, filled: Path, store: Path) -> None:
    tx = box.transaction(dir=store)
    sh(tx, "echo x > x")
    with pytest.warns(ResourceWarning, match="unclosed <nsbox.Transaction of"):
        del tx
        gc.collect()
    assert os.listdir(store) == ["lock"]


def test_a_fork_has_none_of_it(tx: Transaction) -> None:
    """A forked child can't use it, and its end drops nothing."""

    def child() -> None:
        with pytest.raises(ValueError, match="is over"):
            tx.run(["true"])
        tx.discard()

    sh(tx, "echo x > x")
    in_fork(child)
    assert told(tx) == ["A x"]


LIVE = """
import os, sys, nsbox
box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=0)
tx = box.transaction(dir=sys.argv[2])
tx.shell("rm -r *; for i in $(seq 300); do echo $i > $i; done", check=True)
print("ready", flush=True)
if sys.argv[3] == "commit": sys.stdin.readline(); print(tx.commit(), flush=True)
else: tx.run(["sleep", "1000"])
"""


@pytest.mark.parametrize("moment", [None, 0.0, 0.005, 0.01, 0.02, 0.04, 0.08])
def test_the_caller_is_killed(box: Sandbox, filled: Path, store: Path, moment: float | None) -> None:
    """Whenever that is: the next transaction finds the workspace with all changes, or with none."""
    before = taken(filled)
    how = "run" if moment is None else "commit"
    command = [sys.executable, "-I", "-c", LIVE, str(filled), str(store), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as caller:
        assert caller.stdout.readline() == "ready\n"
        if moment is not None:
            caller.stdin.write("\n")
            caller.stdin.flush()
        time.sleep(moment or 0)
        caller.kill()
    until = time.monotonic() + 10  # a process of a set-up may have its descriptors for a moment still
    while os.listdir(store) != ["lock"] and time.monotonic() < until:
        transactions.recover(store)
    with box.transaction(dir=store):
        found = taken(filled)
        assert len(os.listdir(store)) == 2
    assert found == before or sorted(found) == sorted(map(str, range(1, 301)))
    assert os.listdir(store) == ["lock"]


def test_by_default_in_the_users_directory_for_state(
    box: Sandbox, filled: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what was left there is dealt with when a Sandbox starts."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    base = tmp_path / "state" / "nsbox" / "transactions"
    with box.transaction() as tx:
        sh(tx, "echo x > x")
        assert len(os.listdir(base)) == 2
    (base / "0123456789abcdef").mkdir()
    with Sandbox(Policy.workspace(filled)):
        assert os.listdir(base) == ["lock"]
    transactions.recover()


def test_nothing_is_started_during_a_commit(tx: Transaction, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that tries waits until it is over, and gets an error: what comes in is what was there."""
    errors: list[str] = []
    sh(tx, "echo before > x")

    def late() -> None:
        try:
            tx.shell("echo after > x")
        except ValueError as error:
            errors.append(str(error))

    thread = threading.Thread(target=late)
    commit = transaction_commit.commit

    def slow(*args: Any) -> None:
        thread.start()
        thread.join(0.2)
        commit(*args)

    monkeypatch.setattr(transaction_commit, "commit", slow)
    tx.commit()
    thread.join()
    assert errors == ["the transaction is over: it was committed or closed; begin another by box.transaction()"]
    assert Path(tx.workspace, "x").read_text() == "before\n"


def test_the_workspace_becomes_another(box: Sandbox, filled: Path, store: Path) -> None:
    """What lies under its name later is none of the transaction's business."""
    victim = filled.parent / "victim"
    victim.mkdir()
    with box.transaction(dir=store) as tx:
        sh(tx, "echo x > x")
        filled.rename(filled.parent / "moved")
        filled.symlink_to(victim)
        tx.commit()
    assert os.listdir(victim) == []
    assert (filled.parent / "moved" / "x").exists()
    filled.unlink()


def test_where_changes_are_kept_is_hidden(tmp_path: Path) -> None:
    """Also where the policy opens a directory above for reading; one that it opens for writing isn't taken."""
    workspace, store = tmp_path / "all" / "workspace", tmp_path / "all" / "store"
    workspace.mkdir(parents=True)
    policy = Policy.workspace(workspace, read=[tmp_path / "all"])
    with Sandbox(policy, stock=0) as box, box.transaction(dir=store) as tx:
        done = tx.shell(f"ls {store}; touch {store}/x; echo > seen")
        assert done.stdout == ""
        assert "Permission denied" in done.stderr or "Read-only" in done.stderr
        assert told(tx) == ["A seen"]
    assert os.listdir(store) == ["lock"]
    policy = Policy.workspace(workspace, write=[tmp_path / "all"])
    with Sandbox(policy, stock=0) as box, pytest.raises(PolicyError, match="commands of this policy may write to"):
        box.transaction(dir=store)


# ---- what can't be


def test_what_else_lies_where_changes_are_kept(box: Sandbox, filled: Path, store: Path) -> None:
    """Nothing is removed there that no transaction has made."""
    (store / "photos/2024").mkdir(parents=True)
    (store / "photos/2024/one").write_text("mine")
    (store / "notes").write_text("mine")
    with box.transaction(dir=store) as tx:
        sh(tx, "echo x > x")
        tx.commit()
    transactions.recover(store)
    assert (store / "photos/2024/one").read_text() == (store / "notes").read_text() == "mine"
    assert sorted(os.listdir(store / "photos")) == ["2024"]


def test_refused(filled: Path, store: Path, tmp_path: Path) -> None:
    """Each with its reason, and nothing is left."""
    for policy, reason in [
        (Policy.workspace(filled, kill_on_exit=False), "kill_on_exit=False"),
        (Policy.workspace(filled, backend="landlock", degrade=set(LOSSES)), "landlock"),
    ]:
        with pytest.raises(UnavailableError, match=reason):
            Sandbox(policy).transaction(dir=store)
    with pytest.raises(UnavailableError, match="disabled"):
        Sandbox(Policy.workspace(filled), mode="disabled").transaction(dir=store)
    with pytest.raises(PolicyError, match="lies in the workspace"):
        Sandbox(Policy.workspace(filled)).transaction(dir=filled / "store")
    with pytest.raises(FileNotFoundError):
        Sandbox(Policy.workspace(filled)).transaction(tmp_path / "missing", dir=store)
    assert os.listdir(store) == ["lock"]


IN_NAMESPACES = """
import subprocess, sys, nsbox
box = nsbox.Sandbox(nsbox.Policy.workspace(sys.argv[1]), stock=0)
"""


def in_own_mounts(filled: Path, mounts: str, code: str, *args: str) -> str:
    """Run Python code as root of a user namespace, where something can be mounted first."""
    inner = f'{mounts} && exec "$@"'
    command = ["unshare", "-Urm", "--", "sh", "-c", inner, "sh", sys.executable, "-I", "-c", IN_NAMESPACES + code]
    done = subprocess.run([*command, str(filled), *args], capture_output=True, text=True, check=False)
    if "unshare failed" in done.stderr:
        pytest.skip(done.stderr)
    assert done.stderr == ""
    return done.stdout


def test_something_is_mounted_in_the_workspace(filled: Path, store: Path) -> None:
    """An overlay would hide it."""
    code = """
try: box.transaction(dir=sys.argv[2])
except nsbox.UnavailableError as error: print(error)
"""
    said = in_own_mounts(filled, f"mount -t tmpfs none {filled}/directory", code, str(store))
    assert f"{filled}/directory is mounted in the workspace (remedy: unmount it)" in said


def test_disk_full(filled: Path, store: Path) -> None:
    """In the upper directory: the command gets the error, and what was done before can be committed."""
    store.mkdir()
    code = """
with box.transaction(dir=sys.argv[2]) as tx:
    tx.shell("echo first > first", check=True)
    done = tx.shell("head -c 100M /dev/zero > big")
    print("No space left" in done.stderr)
    tx.shell("rm big", check=True)
    print([str(change) for change in tx.commit()])
"""
    said = in_own_mounts(filled, f"mount -t tmpfs -o size=4M,mode=700 none {store}", code, str(store))
    assert said == "True\n['A first']\n"
    assert (filled / "first").read_text() == "first\n"


def test_disk_full_in_the_workspace(workspace: Path, store: Path) -> None:
    """The commit fails, and has changed nothing; less of it can be committed then."""
    code = """
import os
os.chdir("/")
open(sys.argv[1] + "/file", "w").write("before")
with box.transaction(dir=sys.argv[2]) as tx:
    tx.shell("echo after > file; head -c 10M /dev/zero > big", check=True)
    try: tx.commit()
    except nsbox.CommitError as error: print(error)
    print(os.listdir(sys.argv[1]), open(sys.argv[1] + "/file").read())
    tx.shell("rm big", check=True)
    print([str(change) for change in tx.commit()])
"""
    said = in_own_mounts(workspace, f"mount -t tmpfs -o size=4M none {workspace}", code, str(store)).splitlines()
    assert "No space left on device" in said[0]
    assert said[0].endswith("nothing was changed")
    assert said[1:] == ["['file'] before", "['M file']"]


def test_a_file_system_that_overlays_cant_write_to(filled: Path, tmp_path: Path) -> None:
    """The error says which it is and what to do."""
    for name in ("lower", "upper", "work", "merged"):
        (tmp_path / name).mkdir()
    code = """
try: box.transaction(dir=sys.argv[2])
except nsbox.SetupError as error: print(error)
"""
    options = f"userxattr,lowerdir={tmp_path}/lower,upperdir={tmp_path}/upper,workdir={tmp_path}/work"
    said = in_own_mounts(filled, f"mount -t overlay -o {options} none {tmp_path}/merged", code, f"{tmp_path}/merged/s")
    assert "overlay" in said
    assert "dir= in one on ext4, xfs, btrfs or tmpfs" in said
    for name in ("upper", "work"):
        subprocess.run(["chmod", "-R", "u+rwx", tmp_path / name], check=True)


def test_few_descriptors(box: Sandbox, filled: Path, store: Path) -> None:
    """With however few: an error, or a transaction that works; nothing is left."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    outcomes = set()
    for left in range(32):
        used = max(int(name) for name in os.listdir("/proc/self/fd"))
        fillers = [os.open("/", os.O_PATH)]
        while fillers[-1] < used:
            fillers.append(os.open("/", os.O_PATH))  # no gap below the limit is left
        resource.setrlimit(resource.RLIMIT_NOFILE, (fillers[-1] + 1 + left, hard))
        try:
            with box.transaction(dir=store) as tx:
                tx.run(["touch", "x"], stdin=subprocess.DEVNULL, check=True)
                assert told(tx) == ["A x"]
            outcomes.add("worked")
        except OSError as error:
            assert "Too many open files" in str(error)
            outcomes.add("failed")
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            for fd in fillers:
                os.close(fd)
        assert [path.name for path in store.glob("*")] in (["lock"], [])
    assert outcomes == {"worked", "failed"}
