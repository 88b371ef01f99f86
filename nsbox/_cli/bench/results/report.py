"""The report on the figures: the targets, the table, the JSON document."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from nsbox._cli.bench.parts import SMALL_MIB, size_name
from nsbox._cli.bench.results.machine import Machine
from nsbox._cli.bench.results.stats import Comparison, Part, Row, figure
from nsbox._cli.bench.scale import Scale


@dataclass(frozen=True, slots=True)
class Target:
    """A bar from the design, section 7, and the comparison that was measured. found: None if it wasn't measured."""

    name: str
    part: str
    bar: float
    found: Comparison | None
    is_ratio: bool = True  # else a difference, in `unit`
    is_least: bool = False  # the bar is the least, not the most
    unit: str = "ms"

    @property
    def holds(self) -> bool | None:
        """Whether the bar is met; None if it wasn't measured."""
        if self.found is None:
            return None
        return self.found.value >= self.bar if self.is_least else self.found.value <= self.bar


# name, part, of, against ("": the row itself), bar; then is_ratio, is_least, and the unit if it isn't a ratio
_BIG = f"nsbox, {size_name(2048)}"
_SMALL = f"nsbox, {size_name(SMALL_MIB)}"
_WARM_SMALL = f"nsbox warm, {size_name(SMALL_MIB)}"
_WARM_RATE = "nsbox warm, own net, 8 threads"
_BRANCH = "nsbox branch, snippet", "Popen, snippet"
_NUMPY = "numpy: nsbox branch, snippet", "numpy: Popen, snippet"
_MAP = "nsbox map, 2 workers", "Popen, 2 threads"
_MAP_MEMORY = "memory, after the last", "memory, after the first snippets"
_FORK = "nsbox k.fork(), a kernel", "os.fork(), a child"
_TARGETS: tuple[tuple[Any, ...], ...] = (
    ("cold, worker policy, against bwrap with the same layers", "spawn", "nsbox worker", "bwrap worker", 0.40, True),
    (
        "cold, all namespaces, against bwrap --unshare-all",
        "spawn",
        "nsbox unshare-all",
        "bwrap unshare-all",
        0.45,
        True,
    ),
    ("warm, against uncontained Popen", "warm", "nsbox warm", "Popen", 1.4, True),
    ("warm with its own net namespace", "warm", "nsbox warm, own net", "Popen", 1.6, True),
    ("warm, a caller of 2 GiB against 20 MB", "warm", f"nsbox warm, {size_name(2048)}", _WARM_SMALL, 1.15, True),
    ("8 threads, warm: rate, against bwrap's", "rate", _WARM_RATE, "bwrap, own net, 8 threads", 4.0, True, True),
    ("Python's own time in Popen()", "overhead", "nsbox, Popen()", "nsbox, the C call", 0.12, False),
    ("cold, a caller of 2 GiB against 20 MB", "memory", _BIG, _SMALL, 1.15, True),
    ("1000 extra read-only binds, against bwrap", "binds", "nsbox, 1000 binds", "bwrap, 1000 binds", 0.05, True),
    ("file work inside, against uncontained", "files", "nsbox, inside", "Popen, inside", 1.05, True),
    ("the default hardening, at the spawn", "hardening", "nsbox default, spawn", "nsbox off, spawn", 0.06, False),
    ("the same, in a loop of read(2)", "hardening", "nsbox default, read", "nsbox off, read", 1.05, True),
    ("the same, in a loop of fcntl(2)", "hardening", "nsbox default, fcntl", "nsbox off, fcntl", 1.05, True),
    ("import nsbox, against import subprocess", "import", "import nsbox", "import subprocess", 15.0, False),
    *(
        (f"nsbox's bwrap, {name}", "front", f"nsbox's bwrap, {name}", f"bubblewrap, {name}", 0.5, True)
        for name in ("minimal layers", "worker layers")
    ),
    ("network list, from the stock, against none", "network", "nsbox list, stock", "nsbox none, stock", 1.05, True),
    ("network list, cold, its relay running", "network", "nsbox list, cold", "nsbox none, cold", 0.4, False),
    ("network list, the first command of it", "network", "nsbox list, first", "nsbox none, first", 2.0, False),
    ("relayed connect, against direct", "network", "nsbox list, connect", "Popen, connect", 5.0, True),
    ("relayed round trip, against direct", "network", "nsbox list, round trip", "Popen, round trip", 3.0, True),
    ("relayed download, against direct", "network", "nsbox list, download", "Popen, download", 0.5, True, True),
    ("relayed upload, against direct", "network", "nsbox list, upload", "Popen, upload", 0.5, True, True),
    *(
        (f"own loopback with a list, {kind}", "network", f"nsbox list, {own}", f"nsbox none, {own}", bar, True, least)
        for kind, bar, least in (("connect", 1.05, False), ("round trip", 1.05, False), ("download", 0.95, True))
        for own in [f"own loopback, {kind}"]
    ),
    ("a Python snippet in a branch, against uncontained python", "python", *_BRANCH, 0.2, True),
    ("the same, numpy imported before, against uncontained with the import", "python", *_NUMPY, 0.05, True),
    ("a call of a kernel, against uncontained python", "python", "nsbox kernel, call", "Popen, snippet", 0.1, True),
    ("map() with 2 workers: rate, against 2 threads of subprocess", "python", *_MAP, 3.0, True, True),
    ("map(): the caller's memory, last against first", "python", *_MAP_MEMORY, 1.1, True),
    ("k.fork(32) of a big kernel, against its own os.fork()", "python", *_FORK, 1.3, True),
    ("an idle relay's memory", "network", "relay, memory", "", 4.0, False, False, "MiB"),
)


def targets(parts: Sequence[Part]) -> list[Target]:
    """Return the targets, with the comparisons that these parts have for them."""
    by_name = {part.name: part for part in parts}
    return [
        Target(name, part, bar, _comparison(by_name.get(part), of, against, kind[0]), *kind)
        for name, part, of, against, bar, *kind in _TARGETS
    ]


def _comparison(part: Part | None, of: str, against: str, is_ratio: bool) -> Comparison | None:
    return None if part is None else part.comparison(of, against, is_ratio=is_ratio)


# ---- table


def _amount(value: float, is_ratio: bool, unit: str = "ms") -> str:
    if not is_ratio:
        return f"{value:+.2f} ms" if unit == "ms" else f"{value:.2f} {unit}"
    return f"{value:.3f}x" if value < 0.1 else f"{value:.2f}x"


def _found(found: Comparison) -> str:
    """Return a comparison, with its interval, as text."""
    amount, low, high = (_amount(value, found.is_ratio, found.unit) for value in (found.value, found.low, found.high))
    if found.low == found.high:  # too few rounds for an interval
        return amount
    return f"{amount} ({low.rstrip('x').removesuffix(' ms')} to {high})"


def _compared(part: Part, row: Row) -> str:
    return "; ".join(
        f"{_found(c)} {'of' if c.is_ratio else 'to'} {c.against}"
        for c in part.comparisons
        if c.of == row.name and c.against
    )


def _columns(rows: Sequence[Sequence[str]], is_right: str) -> Iterator[str]:
    """Yield the rows as aligned lines. is_right: a letter for each column, l or r; the last one is never padded."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(is_right))]
    for row in rows:
        cells = [
            cell.rjust(width) if side == "r" else cell.ljust(width)
            for cell, width, side in zip(row, widths, is_right, strict=True)
        ]
        yield ("  " + "  ".join(cells)).rstrip()


def _part_lines(part: Part) -> Iterator[str]:
    yield f"{part.name}: {part.title}"
    rows = [("", f"p50 {part.unit}", f"p90 {part.unit}", "p50 against others (95 % interval)")]
    for row in part.rows:
        unit = f" {row.unit}" if row.unit and row.samples else ""
        figures = f"{figure(row.p50)}{unit}", f"{figure(row.p90)}{unit}"
        rows.append((row.name, *figures, row.note or _compared(part, row)))
    yield from _columns(rows, "lrrl")


def _target_lines(targets: Sequence[Target]) -> Iterator[str]:
    yield "targets"
    rows = []
    for target in targets:
        verdict = {None: "not measured", True: "holds", False: "MISSED"}[target.holds]
        measured = "-" if target.found is None else _found(target.found)
        sign = ">=" if target.is_least else "<="
        rows.append((target.name, f"{sign} {_amount(target.bar, target.is_ratio, target.unit)}", measured, verdict))
    yield from _columns(rows, "lrll")


_STEADY = 1.8  # p90 / p50 of an uncontained /bin/true; about 1.3 where nothing else runs


def _restlessness(parts: Sequence[Part]) -> str:
    """Return a warning if the machine was busy with other work; else ""."""
    for part in parts:
        row = part.row("Popen")
        if row is not None and row.p50 and row.p90 and row.p90 / row.p50 > _STEADY:
            times = f"{row.p90 / row.p50:.1f}"
            return f"The machine was busy: the p90 of plain Popen is {times} times its p50. Repeat when it is quiet."
    return ""


def table(machine: Machine, parts: Sequence[Part], *, is_quick: bool) -> str:
    """Return the report as plain text."""
    lines = [str(machine)]
    if is_quick:
        lines.append("A quick run: it shows that the suite works; don't quote its figures.")
    elif busy := _restlessness(parts):
        lines.append(busy)
    for part in parts:
        lines += ["", *_part_lines(part)]
    return "\n".join([*lines, "", *_target_lines(targets(parts))])


# ---- JSON


def _row_document(row: Row) -> dict[str, Any]:
    return {
        "name": row.name,
        "min": min(row.samples, default=None),
        "p50": row.p50,
        "p90": row.p90,
        "n": len(row.samples),
        "note": row.note,
        "unit": row.unit,
    }


def _part_document(part: Part) -> dict[str, Any]:
    return {
        "title": part.title,
        "unit": part.unit,
        "rows": [_row_document(row) for row in part.rows],
        "comparisons": [asdict(comparison) for comparison in part.comparisons],
    }


def document(machine: Machine, scale: Scale, parts: Sequence[Part], *, is_quick: bool) -> dict[str, Any]:
    """Return the report as a JSON document."""
    bars = [{**asdict(target), "holds": target.holds} for target in targets(parts)]
    return {
        "machine": asdict(machine),
        "quick": is_quick,
        "scale": {**asdict(scale), "binds": {str(count): rounds for count, rounds in scale.binds.items()}},
        "parts": {part.name: _part_document(part) for part in parts},
        "targets": bars,
    }
