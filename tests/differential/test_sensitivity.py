"""Would the tests of this folder notice? Plans are carried out wrongly on purpose, and each time they must."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from nsbox_differential.arena import Arena, Case
from nsbox_differential.attempt import check_legacy, check_rights
from nsbox_differential.check import check
from nsbox_differential.model import Wish
from nsbox_testing import needs

from nsbox import Bind, BindData, Chmod, Dev, DevBind, Dir, File, Hostname, Mask, Op, RemountRo, RoBind, Symlink, Tmpfs
from nsbox._core import wire
from nsbox._spawn import prepare

Change = Callable[[list[Op]], list[Op]]


@pytest.fixture
def carry_out_as(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Change], None]]:
    """Return what makes nsbox carry out other ops than those of the plan."""
    encode = wire.encode

    def carry_out_as(change: Change) -> None:
        monkeypatch.setattr(wire, "encode", lambda ops, *idmaps: encode(change(list(ops)), *idmaps))
        prepare.forget()

    yield carry_out_as
    prepare.forget()


def instead(kind: type[Op], change: Callable[[Op], Op]) -> Change:
    """Return the change of all ops of just this kind."""
    return lambda ops: [change(op) if type(op) is kind else op for op in ops]


def without(kind: type[Op], dest: str = "") -> Change:
    """Return the change that leaves ops of this kind out; dest: only those whose destination ends like that."""
    return lambda ops: [op for op in ops if not (type(op) is kind and op.dest.endswith(dest))]


OPS = (
    RoBind("/@probe", "/probe"),
    RoBind("/@/d", "/ro"),
    Bind("/@/d", "/rw"),
    DevBind("/@/d/a", "/devices"),
    RoBind("/@/none", "/none", optional=True),
    Tmpfs("/t", size=1 << 20, mode=0o711),
    Dir("/t/empty", 0o700),
    Dir("/t/dir", 0o700),
    File("/t/dir/file", b"text", 0o640),
    BindData("/t/data", b"data", 0o600, read_only=True),
    Bind("/@/d/b", "/t/dir/b"),
    Symlink("dir/b", "/t/link"),
    Chmod("/t/dir", 0o750),
    RemountRo("/t"),
    Dev("/dev"),
    Hostname("inside"),
)

WRONG: dict[str, Change] = {
    "read-only bind writable": instead(RoBind, lambda op: Bind(op.src, op.dest, op.optional)),
    "writable bind read-only": instead(Bind, lambda op: RoBind(op.src, op.dest)),
    "devices by a plain bind": instead(Bind, lambda op: DevBind(op.src, op.dest)),
    "no devices by a dev-bind": instead(DevBind, lambda op: Bind(op.src, op.dest)),
    "try form insists": instead(RoBind, lambda op: replace(op, optional=False)),
    "another source": instead(Bind, lambda op: replace(op, src=op.src + "/a") if op.src.endswith("/d") else op),
    "another place": instead(Symlink, lambda op: replace(op, dest=op.dest + "2")),
    "another target": instead(Symlink, lambda op: replace(op, target="dir")),
    "another mode of a tmpfs": instead(Tmpfs, lambda op: replace(op, mode=0o755)),
    "another mode of a directory": instead(Dir, lambda op: replace(op, mode=0o755)),
    "another mode of a file": instead(File, lambda op: replace(op, mode=0o644)),
    "another size": instead(Tmpfs, lambda op: replace(op, size=None)),
    "other contents": instead(File, lambda op: replace(op, data=b"Text")),
    "other data": instead(BindData, lambda op: replace(op, data=b"")),
    "data writable": instead(BindData, lambda op: replace(op, read_only=False)),
    "another host name": instead(Hostname, lambda op: Hostname("outside")),
    "order turned round": lambda ops: [*ops[:5], *ops[10:11], *ops[5:10], *ops[11:]],
    "tmpfs left out": without(Tmpfs, "/t"),
    "directory left out": without(Dir, "/empty"),
    "chmod left out": without(Chmod),
    "remount-ro left out": without(RemountRo),
    "link of /dev left out": without(Symlink, "/dev/fd"),
    "mounted twice": lambda ops: [*ops[:3], *ops[2:]],
}


@needs.programs("bwrap")
@pytest.mark.parametrize("name", ["", *WRONG])
def test_comparison_with_bwrap(arena: Arena, carry_out_as: Callable[[Change], None], name: str) -> None:
    """The comparison with bwrap fails for anything that is carried out in another way, and only then."""
    case = Case(OPS, frozenset({"uts"}))
    if not name:
        check(arena, case)
        return
    carry_out_as(WRONG[name])
    with pytest.raises(AssertionError):
        check(arena, case)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the tree is."""
    return tmp_path_factory.mktemp("model")


TREE = {
    "w": {"d": {"f": None, "secret": None}, "ro": {"f": None, "w": {"f": None}}, "l": "d"},
    "o": {"f": None},
    "x": None,
}
WISH = Wish("/w", write=("/w/ro/w",), read=("/w/ro", "/o"), deny=("/w/d/secret",))


def reversed_binds(ops: list[Op]) -> list[Op]:
    """Put the binds of the tree into the reverse of the order by depth."""
    ours = [op for op in ops if isinstance(op, Bind | RoBind) and "/tree/" in op.dest]
    turned = iter(ours[::-1])
    return [next(turned) if op in ours else op for op in ops]


def is_pin(op: Op) -> bool:
    """Say if the op is only there so that a directory can't be moved."""
    return isinstance(op, Bind) and op.optional


MISTAKES: dict[str, Change] = {
    "mask left out": without(Mask, "/secret"),
    "mask of a directory": instead(Mask, lambda op: replace(op, dest=op.dest.removesuffix("/secret"))),
    "read-only bind writable": instead(RoBind, lambda op: Bind(op.src, op.dest, op.optional)),
    "writable bind read-only": instead(Bind, lambda op: RoBind(op.src, op.dest, op.optional)),
    "order turned round": reversed_binds,
    "bind left out": without(RoBind, "/tree/o"),
    "more is bound": instead(
        RoBind, lambda op: replace(op, src=op.src[:-2], dest=op.dest[:-2]) if op.dest.endswith("/tree/o") else op
    ),
}


@pytest.mark.parametrize("name", ["", *MISTAKES])
def test_comparison_with_the_model(place: Path, carry_out_as: Callable[[Change], None], name: str) -> None:
    """The comparison with the model fails for a mistake of a backend."""
    if not name:
        check_rights(place, TREE, WISH)
        return
    carry_out_as(MISTAKES[name])
    with pytest.raises(AssertionError):
        check_rights(place, TREE, WISH)


@pytest.mark.parametrize("tries", ["moves", "directories"])
def test_pins_are_missed(place: Path, carry_out_as: Callable[[Change], None], tries: str) -> None:
    """Without pins, what was denied is seen by the next command."""
    check_legacy(place, TREE, WISH, tries)
    carry_out_as(lambda ops: [op for op in ops if not is_pin(op)])
    with pytest.raises(AssertionError):
        check_legacy(place, TREE, WISH, tries)
