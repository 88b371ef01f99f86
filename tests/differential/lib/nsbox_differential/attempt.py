"""One workspace policy put to the test: what a command can do, by the model, and what it leaves to the next one."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import nsbox
from nsbox import Policy
from nsbox_differential.check import event, note
from nsbox_differential.model import (
    ATTEMPTS,
    Model,
    Node,
    Wish,
    build,
    content,
    expected_on_host,
    found_on_host,
)

_INSIDE = Path(__file__).parents[2] / "inside"


@contextlib.contextmanager
def standing(tree: Node, place: Path) -> Iterator[str]:
    """Have the tree on the host for a while, so deep that its links don't climb to what the model doesn't know."""
    deep = place.joinpath(*["deep"] * 9)
    deep.mkdir(parents=True)
    top = str(deep / "tree")
    build(tree, top)
    try:
        yield top
    finally:
        shutil.rmtree(place / "deep")


def run_inside(policy: Policy, script: str, asked: object) -> str:
    """Run one of the scripts in the sandbox and return what it prints."""
    command = [sys.executable, "-I", "-S", "-X", "utf8", "-c", (_INSIDE / script).read_text()]
    done = nsbox.run(command, policy=policy, input=json.dumps(asked), capture_output=True, text=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def _say(policy: Policy, tree: Node) -> None:
    note(f"tree: {tree!r}")
    note(f"write={policy.write!r}\nread={policy.read!r}\ndeny={policy.deny!r}")
    note(nsbox.explain(policy))


def check_rights(place: Path, tree: Node, wish: Wish) -> None:
    """Try everything with every path of the tree, and compare with the model, inside and on the host."""
    with standing(tree, place) as top:
        policy = wish.sensible(top).policy(top)
        _say(policy, tree)
        model = Model(top, tree, policy)
        asked = sorted(model.nodes.keys() - {top})
        expected = {what: [getattr(model, what)(path) for path in asked] for what in ATTEMPTS}
        found = json.loads(run_inside(policy, "probe.py", asked))
        wrong = [
            f"{what} {path[len(top) :]!r}: {found[what][i]!r}, must be {expected[what][i]!r}"
            for what in ATTEMPTS
            for i, path in enumerate(asked)
            if found[what][i] != expected[what][i]
        ]
        assert not wrong, "\n".join(wrong)
        assert found_on_host(top) == expected_on_host(model, expected, asked)


def check_legacy(place: Path, tree: Node, wish: Wish, tries: str) -> None:
    """Let one command move what it can, and look what the next one with the same policy can read and change."""
    with standing(tree, place) as top:
        policy = wish.sensible(top).policy(top)
        _say(policy, tree)
        model = Model(top, tree, policy)
        files = [path for path, node in model.nodes.items() if node is None and model.right(path) != "write"]
        run_inside(policy, "mover.py", [policy.write[0], sorted(model.nodes.keys() - {top}), tries])
        try:
            shown = run_inside(policy, "finder.py", top)
        except (nsbox.NsboxError, OSError) as error:
            event(f"the next command is refused: {type(error).__name__}")
            shown = ""
        there = [value for value in found_on_host(top).values() if isinstance(value, bytes)]
        for path in files:
            what = content(path[len(top) :])
            can_read = what.decode() in shown.splitlines()
            assert not can_read or model.right(path) == "read", f"the next command can read {path}"
            assert what in there, f"{path} has been changed or removed"
