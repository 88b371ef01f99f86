"""install() and confined(): who is contained, who isn't, who is refused, and what stays as it was.

install() is for the whole process and for good, so each test runs its code in a Python of its own. There `where()`
starts a command by subprocess and says whether that is in a sandbox; outside of a block it is the control.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

Child = Callable[..., Any]


# ---- blocks


def test_in_the_block_only(child: Child) -> None:
    """Before and after a block commands aren't contained, in it they are."""
    code = """
seen = [where()]
with nsbox.confined(policy):
    seen += [where(), where()]
report([*seen, where()])
"""
    assert child(code) == ["out", "in", "in", "out"]


def test_install_alone_contains_nothing(child: Child) -> None:
    """Without a block only policy= asks for a sandbox; install() may be called again and again."""
    code = "nsbox.install(); nsbox.install(); report([where(), where(policy=policy), where()])"
    assert child(code) == ["out", "in", "out"]


def test_the_innermost_block_counts(child: Child) -> None:
    """Blocks nest: each has its own policy, and the outer one's comes back."""
    code = """
def name():
    return subprocess.check_output(["sh", "-c", "echo $WHO"]).decode().strip()

with nsbox.confined(policy.with_(env={"WHO": "outer"})):
    seen = [name()]
    with nsbox.confined(policy.with_(env={"WHO": "inner"})):
        seen += [name()]
    seen += [name()]
report([*seen, name()])
"""
    assert child(code) == ["outer", "inner", "outer", ""]


def test_an_exception_ends_the_block(child: Child) -> None:
    """It comes through, and the policy isn't in force any more."""
    code = """
try:
    with nsbox.confined(policy):
        subprocess.run(["false"], check=True)
except subprocess.CalledProcessError as error:
    report([error.returncode, where()])
"""
    assert child(code) == [1, "out"]


def test_policy_argument_overrides(child: Child) -> None:
    """policy= is stronger than the block, for nsbox's names and the standard library's; None means the block's."""
    code = """
other = policy.with_(env={"WHO": "argument"})
ask = ["sh", "-c", "echo $WHO"]
with nsbox.confined(policy.with_(env={"WHO": "block"})):
    report([sub.run(ask, stdout=subprocess.PIPE, policy=chosen).stdout.decode().strip()
            for sub in (subprocess, nsbox) for chosen in (None, other)])
"""
    assert child(code) == ["block", "argument", "block", "argument"]


def test_wrong_policies(child: Child) -> None:
    """What is no Policy is a TypeError, for the block and for policy=, and starts nothing."""
    code = """
seen = []
for wrong in (None, "workspace", {}):
    try:
        with nsbox.confined(wrong):
            seen.append("ran")
    except TypeError as error:
        seen.append(str(error))
nsbox.install()
try:
    subprocess.run(["touch", "made"], policy="no")
except TypeError as error:
    seen.append(str(error))
report([*seen, os.path.exists("made")])
"""
    problem = "policy is a {}, must be nsbox.Policy or nsbox.Sandbox"
    assert child(code) == [*(problem.format(kind) for kind in ("NoneType", "str", "dict", "str")), False]


def test_no_sandbox_no_command(child: Child) -> None:
    """Where the sandbox can't be made the command doesn't run at all."""
    code = """
broken = nsbox.Policy.layers(nsbox.RoBind("/nonexistent", "/usr"))
with nsbox.confined(broken):
    problem = refused(subprocess.run, ["touch", "made"])
report([problem is not None, os.path.exists("made")])
"""
    assert child(code) == [True, False]


# ---- what carries the policy, and what doesn't


def test_tasks(child: Child) -> None:
    """Tasks that the block starts have its policy, also after its end; others, at the same time, don't."""
    code = """
async def ask(go):
    await go.wait()
    process = await asyncio.create_subprocess_exec(*NAMESPACE, stdout=subprocess.PIPE)
    return said((await process.communicate())[0])

async def main():
    go = asyncio.Event()
    tasks = [asyncio.create_task(ask(go))]
    with nsbox.confined(policy):
        tasks.append(asyncio.create_task(ask(go)))
        tasks.append(asyncio.create_task(ask(go)))
    tasks.append(asyncio.create_task(ask(go)))
    go.set()
    return await asyncio.gather(*tasks)

report(asyncio.run(main()))
"""
    assert child(code) == ["out", "in", "in", "out"]


def test_blocks_of_two_tasks(child: Child) -> None:
    """Blocks that overlap in time, in two tasks, don't disturb each other."""
    code = """
async def one(name, mine, others):
    with nsbox.confined(policy.with_(env={"WHO": name})):
        mine.set()
        await others.wait()
        return subprocess.check_output(["sh", "-c", "echo $WHO"]).decode().strip()

async def main():
    first, second = asyncio.Event(), asyncio.Event()
    return await asyncio.gather(one("first", first, second), one("second", second, first))

report([*asyncio.run(main()), where()])
"""
    assert child(code) == ["first", "second", "out"]


def test_threads(child: Child) -> None:
    """A thread that the block starts is contained, also after the block, and so is a thread of that thread's."""
    code = """
def in_thread(function):
    seen = []
    thread = threading.Thread(target=lambda: seen.append(function()), daemon=True)
    thread.start()
    thread.join()
    return seen[0]

class Own(threading.Thread):
    def run(self):
        go.wait()
        self.seen = where()

go, later = threading.Event(), Own()
seen = [in_thread(where)]
with nsbox.confined(policy):
    context = contextvars.copy_context()
    seen += [asyncio.run(asyncio.to_thread(where)), in_thread(lambda: context.run(where)), in_thread(where), where()]
    seen += [in_thread(lambda: in_thread(where))]
    later.start()
go.set()
later.join()
report([*seen, later.seen, "run" in vars(later), in_thread(where)])
"""
    assert child(code) == ["out", "in", "in", "in", "in", "in", "in", False, "out"]


def test_a_thread_that_ran_before(child: Child) -> None:
    """A thread from before the block, with work of its own, is contained with threads=True only."""
    code = """
import queue
asked, told = queue.SimpleQueue(), queue.SimpleQueue()

def serve():
    while asked.get():
        told.put(where())

thread = threading.Thread(target=serve)
thread.start()
seen = []
for all_threads in (False, True):
    with nsbox.confined(policy, threads=all_threads):
        asked.put(True)
        seen.append(told.get())
asked.put(False)
thread.join()
report(seen)
"""
    assert child(code) == ["out", "in"]


def test_pools_of_threads(child: Child) -> None:
    """Work belongs to the code that submits it, whoever made the pool, and whose submission started its thread."""
    code = """
from concurrent.futures import ThreadPoolExecutor
seen = []
with ThreadPoolExecutor(1) as before:
    seen.append(before.submit(where).result())
    with nsbox.confined(policy), ThreadPoolExecutor(1, initializer=lambda: seen.append(where())) as made_here:
        seen += [before.submit(where).result(), made_here.submit(where).result(), *before.map(lambda _: where(), "a")]
        seen.append("os.system" in refused(lambda: before.submit(os.system, "touch made").result()))
    seen.append(before.submit(where).result())
with ThreadPoolExecutor(1) as started_inside:
    with nsbox.confined(policy):
        started_inside.submit(where).result()
    seen.append(started_inside.submit(where).result())
report([*seen, os.path.exists("made")])
"""
    assert child(code) == ["out", "in", "in", "in", "in", True, "out", "out", False]


def test_initializers_of_pools(child: Child) -> None:
    """One belongs to the code that makes the pool, whose threads may start after the block. The control: made outside."""
    code = """
from concurrent.futures import ThreadPoolExecutor
seen = []
begin = lambda name: seen.append((name, where()))
pools = [ThreadPoolExecutor(1, "", begin, ("control",))]
with nsbox.confined(policy):
    pools += [ThreadPoolExecutor(1, "", begin, ("by position",)), ThreadPoolExecutor(initializer=begin, initargs=("by name",))]
    pools.append(ThreadPoolExecutor(1, initializer=None))
    try: ThreadPoolExecutor(1, initializer=3)
    except TypeError as raised: error = str(raised)
for pool in pools:
    seen.append(pool.submit(where).result())
    pool.shutdown()
report([seen, error])
"""
    assert child(code) == [
        [["control", "out"], "out", ["by position", "in"], "out", ["by name", "in"], "out", "out"],
        "initializer must be a callable",
    ]


def test_callbacks_of_futures(child: Child) -> None:
    """One belongs to the code that adds it. The control: the thread that calls it has no policy, or has another's."""
    code = """
from concurrent.futures import Future, ThreadPoolExecutor
seen = []

def add(future):
    future.add_done_callback(lambda _: seen.append(where()))

go, own = threading.Event(), Future()
with ThreadPoolExecutor(1) as before:
    before.submit(int).result()
    with nsbox.confined(policy):
        work = before.submit(go.wait)
        add(work)
        add(own)
    add(work)
    go.set()
own.set_result(None)
report(seen)
"""
    assert child(code) == ["in", "out", "in"]


def test_run_in_executor(child: Child) -> None:
    """asyncio's own pool, whose thread may be from before the block, does the block's work contained."""
    code = """
async def main():
    loop = asyncio.get_running_loop()
    loop.set_default_executor(__import__("concurrent.futures").futures.ThreadPoolExecutor(1))
    seen = [await loop.run_in_executor(None, where)]
    with nsbox.confined(policy):
        seen.append(await loop.run_in_executor(None, where))
    return [*seen, await loop.run_in_executor(None, where)]

report(asyncio.run(main()))
"""
    assert child(code) == ["out", "in", "out"]


def test_a_block_in_a_thread(child: Child) -> None:
    """It is that thread's alone."""
    code = """
inside, go, seen = threading.Event(), threading.Event(), []

def run():
    with nsbox.confined(policy):
        inside.set()
        go.wait()
        seen.append(where())

thread = threading.Thread(target=run)
thread.start()
inside.wait()
seen.append(where())
go.set()
thread.join()
report(seen)
"""
    assert child(code) == ["out", "in"]


def test_forks(child: Child) -> None:
    """A fork of the block has the policy: multiprocessing with fork, and its pools."""
    code = """
import multiprocessing, warnings
from concurrent.futures import ProcessPoolExecutor
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
context = multiprocessing.get_context("fork")
with nsbox.confined(policy), ProcessPoolExecutor(1, mp_context=context) as pool:
    report([pool.submit(where).result(), pool.submit(where).result()])
"""
    assert child(code) == ["in", "in"]


POOLS = """
import multiprocessing, os, signal, time, warnings
from concurrent.futures import ProcessPoolExecutor
warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
context = multiprocessing.get_context("fork")

def told(_=None):
    try:
        return where()
    except nsbox.NsboxError as error:
        return "refused" if "blocks with different policies" in str(error) else str(error)

def shown(_=None):
    try:
        return subprocess.check_output(["sh", "-c", "echo $WHO"]).decode().strip()
    except nsbox.NsboxError as error:
        return "refused"
"""


def test_later_workers_of_a_pool(child: Child) -> None:
    """Workers that a pool's thread forks to replace others have the policy, even if the pool is from before the block."""
    code = (
        POOLS
        + """
earlier = context.Pool(2, maxtasksperchild=1)
with nsbox.confined(policy):
    with earlier:
        earlier.map(told, range(4), chunksize=1)  # the last of those from before
        by_earlier = set(earlier.map(told, range(12), chunksize=1))
    with context.Pool(2, maxtasksperchild=1) as pool:
        one_task = set(pool.map(told, range(12), chunksize=1))
    with context.Pool(2) as pool:
        first = {pool.apply(os.getpid) for _ in range(20)}
        for _ in range(4):
            pool.apply_async(os._exit, (1,))  # the worker dies with it, and the pool's own thread forks another
        seen, pids = set(), set(first)
        while len(pids - first) < 2:
            seen.add(pool.apply(told))
            pids.add(pool.apply(os.getpid))
    with ProcessPoolExecutor(2, mp_context=context) as executor:
        by_executor = set(executor.map(told, range(6)))
report([sorted(by_earlier), sorted(one_task), sorted(seen), sorted(by_executor), where()])
"""
    )
    assert child(code) == [["in"], ["in"], ["in"], ["in"], "out"]


def test_control_a_thread_has_no_policy(child: Child) -> None:
    """Control: what a pool's thread has forked is contained by the open block alone, not by its context."""
    code = (
        POOLS
        + """
from nsbox._popen import blocks as _blocks
pool = context.Pool(2, maxtasksperchild=1)
with nsbox.confined(policy):
    _blocks.opened.clear()
    with pool:
        report(sorted(set(pool.map(told, range(12), chunksize=1))))
"""
    )
    assert child(code) == ["out"]


def test_workers_while_several_blocks_are_open(child: Child) -> None:
    """With blocks of different policies, a later worker of an earlier pool can start nothing; with one policy it can."""
    code = (
        POOLS
        + """
other, seen = policy.with_(env={"X": "1"}), []
for inner in (policy, other):
    with context.Pool(1, maxtasksperchild=1) as pool, nsbox.confined(policy):
        with nsbox.confined(inner):
            pool.map(told, range(4), chunksize=1)  # the last of those from before
            seen.append(sorted(set(pool.map(told, range(4), chunksize=1))))
report(seen)
"""
    )
    assert child(code) == [["in"], ["refused"]]


def test_workers_of_the_outer_block(child: Child) -> None:
    """A pool that a block has made keeps the policy of that block, whatever blocks are open later."""
    code = (
        POOLS
        + """
with nsbox.confined(policy.with_(env={"WHO": "outer"})), context.Pool(1, maxtasksperchild=1) as pool:
    with nsbox.confined(policy.with_(env={"WHO": "inner"})):
        report(sorted(set(pool.map(shown, range(4), chunksize=1))))
"""
    )
    assert child(code) == ["outer"]


def test_a_fork_of_another_thread(child: Child) -> None:
    """What a thread from before the block forks while it is open has its policy; what it starts itself doesn't."""
    code = (
        POOLS
        + """
def run():
    go.wait()
    process = context.Process(target=lambda: queue.put((told(), in_thread(told))))
    process.start()
    seen.append(where())
    process.join()

def in_thread(function):
    found = []
    thread = threading.Thread(target=lambda: found.append(function()))
    thread.start()
    thread.join()
    return found[0]

queue, seen, go = context.SimpleQueue(), [], threading.Event()
thread = threading.Thread(target=run)
thread.start()
with nsbox.confined(policy):
    go.set()
    thread.join()
report([*queue.get(), *seen])
"""
    )
    assert child(code) == ["in", "in", "out"]


def test_all_threads(child: Child) -> None:
    """With threads=True threads from before the block have its policy while it is open, unless they have their own."""
    code = (
        POOLS
        + """
import queue
mine, other = policy.with_(env={"WHO": "mine"}), policy.with_(env={"WHO": "other"})
asked, told = queue.SimpleQueue(), queue.SimpleQueue()

def serve():
    while work := asked.get():
        told.put(work())

def ask(work):
    asked.put(work)
    return told.get()

def own():
    with nsbox.confined(other):
        return shown()

thread = threading.Thread(target=serve)
thread.start()
seen = [ask(shown)]
with nsbox.confined(mine, threads=True):
    seen += [ask(shown), ask(own), ask(shown)]
    seen += ["os.system" in ask(lambda: refused(os.system, "touch made"))]
    with nsbox.confined(other, threads=True):
        seen += [shown(), ask(shown)]
    with nsbox.confined(other):
        seen += [shown(), ask(shown)]
seen += [ask(shown), os.path.exists("made")]
asked.put(None)
thread.join()
report(seen)
"""
    )
    assert child(code) == ["", "mine", "other", "mine", True, "other", "refused", "other", "mine", "", False]


def test_a_forkserver_that_runs_already(child: Child, workspace: Path) -> None:
    """New processes of a forkserver from before the block are refused, since it isn't contained."""
    (workspace / "work.py").write_text("def make(path):\n    open(path, 'w').close()\n")
    code = """
import multiprocessing, work
context = multiprocessing.get_context("forkserver")
def attempt(name):
    process = context.Process(target=work.make, args=(name,))
    process.start()
    process.join()

attempt("before")
with nsbox.confined(policy):
    problem = refused(attempt, "inside")
attempt("after")
report(["forkserver" in problem, *map(os.path.exists, ("before", "inside", "after"))])
from multiprocessing import forkserver, resource_tracker
forkserver._forkserver._stop()
resource_tracker._resource_tracker._stop()
"""
    assert child(code) == [True, True, False, True]


# ---- install()


def test_modules_with_popen_of_their_own(child: Child, workspace: Path) -> None:
    """install(module) replaces Popen there, under each of its names."""
    (workspace / "library.py").write_text("from subprocess import Popen\nsafer = Popen\n")
    (workspace / "another.py").write_text("from library import safer\n")
    code = """
import library, another
nsbox.install()
def ask(start):
    return said(start(NAMESPACE, stdout=-1).communicate()[0])

starts = lambda: (library.Popen, library.safer, another.safer)
seen = [ask(start) for start in starts()]
with nsbox.confined(policy):
    seen += [refused(ask, start) is not None for start in starts()]
nsbox.install(library, another)
nsbox.install(library, another)
seen += [ask(start) for start in starts()]
with nsbox.confined(policy):
    seen += [ask(start) for start in starts()]
report(seen)
"""
    assert child(code) == ["out"] * 3 + [True] * 3 + ["out"] * 3 + ["in"] * 3


def test_install_in_the_wrong_module(child: Child) -> None:
    """A module without Popen, or with another one, is a TypeError; nothing has been replaced then."""
    code = """
import types, psutil
plain = subprocess.Popen
own = types.ModuleType("own")
class Popen: pass
own.Popen = Popen
good = types.ModuleType("good")
good.Popen = plain
seen = []
for wrong in (json, own, psutil, nsbox):
    try:
        nsbox.install(good, wrong)
    except TypeError as error:
        seen.append(str(error).endswith("has no Popen of the standard library"))
report([*seen, subprocess.Popen is plain, good.Popen is plain, own.Popen is Popen])
"""
    assert child(code) == [True] * 7


def test_subclasses(child: Child) -> None:
    """One that is made after install() is contained in the block, and its own methods count."""
    code = """
nsbox.install()
class Mine(subprocess.Popen):
    def wait(self, timeout=None):
        self.waited = True
        return super().wait(timeout)

def ask():
    with Mine(NAMESPACE, stdout=subprocess.PIPE) as process:
        return [said(process.stdout.read()), process.wait(), process.waited, isinstance(process, subprocess.Popen)]

seen = ask()
with nsbox.confined(policy):
    seen += ask()
report(seen)
"""
    assert child(code) == ["out", 0, True, True, "in", 0, True, True]


def test_started_inside_waited_for_outside(child: Child) -> None:
    """A process keeps its sandbox when the block has ended, and one without doesn't get any within."""
    code = """
nsbox.install()
plain = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
with nsbox.confined(policy):
    contained = subprocess.Popen(["sh", "-c", "sleep 1000 & exec cat"], stdin=subprocess.PIPE)
    plain.terminate()
    seen = [plain.wait(), plain.sandbox]
contained.kill()
seen += [contained.wait(), contained.sandbox.pid == contained.pid]
for process in plain, contained:
    process.stdin.close()
report(seen)
"""
    assert child(code) == [-15, None, -9, True]
