"""The benchmark suite works, says what it promises to say, and hides nothing. No test looks at a duration."""

from __future__ import annotations

import json
import math
import os
import random
import resource
import subprocess
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import pytest
from nsbox_testing import needs

from nsbox._cli import bench
from nsbox._cli.bench import contenders, parts, scale
from nsbox._cli.bench.results import chart, report, stats
from nsbox._relay import process as relay_process

TINY = scale.Scale(
    warmup=0,
    spawn_rounds=2,
    memory_rounds=1,
    memory_mib=64,
    binds={0: 1, 3: 2},
    thread_rounds=1,
    thread_seconds=0.01,
    file_rounds=1,
    files=5,
    import_rounds=1,
    call_rounds=1,
    calls=40,
    traffic_rounds=2,
    turns=10,
    traffic_mib=1,
    connections=(30,),
    snippets=6,
    map_rounds=2,
    kernel_mib=8,
)

needs_bwrap = needs.programs("bwrap")


@pytest.fixture
def tiny(tmp_path: Path, workspace: Path) -> parts.Bench:
    """The smallest scale at which every part does all that it does."""
    return parts.Bench(str(tmp_path), str(workspace), TINY, random.Random(0), lambda text: None)


@pytest.fixture
def no_bwrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No bwrap can be found."""
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))


def options(**changes: object) -> Namespace:
    return Namespace(**{"quick": True, "json": None, "png": None, "only": [], **changes})


# ---- the command


def test_quick_run(tmp_path: Path) -> None:
    """`nsbox bench --quick` prints the table and writes the JSON document with all that was promised."""
    path = tmp_path / "out.json"
    command = [sys.executable, "-P", "-m", "nsbox", "bench", "--quick", "--only", "spawn", "--json", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr
    for text in ("nsbox worker", "bwrap unshare-all", "targets", "don't quote", os.uname().release):
        assert text in done.stdout
    document = json.loads(path.read_text())
    assert set(document) == {"machine", "quick", "scale", "parts", "targets"}
    assert {"nsbox", "bwrap", "python", "kernel", "cpus", "uid", "load"} <= set(document["machine"])
    assert document["quick"] is True
    spawn = document["parts"]["spawn"]
    assert set(spawn) == {"title", "unit", "rows", "comparisons"}
    assert all(set(row) == {"name", "min", "p50", "p90", "n", "note", "unit"} for row in spawn["rows"])
    rows = {row["name"]: row for row in spawn["rows"]}
    assert rows["Popen"]["n"] == rows["nsbox worker"]["n"] == document["scale"]["spawn_rounds"]
    assert ("nsbox worker", "Popen") in {(c["of"], c["against"]) for c in spawn["comparisons"]}
    assert {target["holds"] for target in document["targets"] if target["part"] != "spawn"} == {None}


def test_picture(tmp_path: Path) -> None:
    """--png draws, without a display."""
    pytest.importorskip("matplotlib")
    path = tmp_path / "out.png"
    command = [sys.executable, "-P", "-m", "nsbox", "bench", "--quick", "--only", "import", "--png", str(path)]
    environ = {name: value for name, value in os.environ.items() if name != "DISPLAY"}
    environ["MPLCONFIGDIR"] = str(tmp_path)
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, check=False)
    assert done.returncode == 0, done.stderr
    assert path.read_bytes().startswith(b"\x89PNG\r\n")


# In a process of its own: the warnings of matplotlib's own imports are not ours.
DRAW_ALL = """
from nsbox._cli import bench
from nsbox._cli.bench.results import chart
from nsbox._cli.bench.results.machine import look
from nsbox._cli.bench.results.stats import Part, Row

names = {"binds": ["bwrap, 0 binds", "nsbox, 0 binds"], "threads": ["Popen, 1 thread", "nsbox, 4 threads"]}
some = [Part(n, "", "ms", [Row(r, (1.0, 2.0)) for r in names.get(n, ["Popen", "nsbox"])]) for n in bench.PARTS]
chart.draw("full.png", look(), some, is_quick=True)
none = [Part(n, "", "ms", [Row("bwrap, 1 thread", (), "absent")]) for n in bench.PARTS]
chart.draw("none.png", look(), none, is_quick=False)
"""


def test_all_parts_can_be_drawn(tmp_path: Path) -> None:
    """Every part has its place in the picture, also one without any figure."""
    pytest.importorskip("matplotlib")
    environ = os.environ | {"MPLCONFIGDIR": str(tmp_path)}
    command = [sys.executable, "-P", "-c", DRAW_ALL]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "full.png").stat().st_size > (tmp_path / "none.png").stat().st_size > 1000


def test_no_matplotlib(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Without matplotlib --png is refused with the way to get it, before any time is spent."""
    monkeypatch.setattr(chart, "is_possible", lambda: False)
    monkeypatch.setattr(bench, "_measure", lambda options: pytest.fail("measured"))
    assert bench.main(options(png=str(tmp_path / "x.png"))) == 2
    assert "pip install 'nsbox[bench]'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"json": "/nowhere/x"}, "missing"),
        ({"png": "/nowhere/x"}, "missing"),
    ],
)
def test_wrong_options(
    changes: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that can't work are refused before any time is spent."""
    monkeypatch.setattr(bench, "_measure", lambda options: pytest.fail("measured"))
    assert bench.main(options(**changes)) == 2
    assert said in capsys.readouterr().err


# ---- what can't take part


@pytest.mark.usefixtures("no_bwrap")
def test_absent_bwrap_is_said(tiny: parts.Bench) -> None:
    """Without bwrap its rows say "absent", nsbox is measured all the same, and the targets against it are open."""
    part = parts.spawn(tiny)
    notes = {row.name: row.note for row in part.rows}
    assert {note for name, note in notes.items() if name.startswith("bwrap")} == {"absent"}
    assert len(part.row("nsbox worker").samples) == TINY.spawn_rounds
    machine = bench.look()
    assert machine.bwrap == "absent"
    text = report.table(machine, [part], is_quick=False)
    lines = {tuple(line.split()) for line in text.splitlines()}
    assert ("bwrap", "worker", "-", "-", "absent") in lines
    assert "not measured" in text and "bwrap absent" in text


@pytest.mark.parametrize(
    ("program", "said"),
    [("echo first; echo it broke >&2; exit 3", "failed: it broke"), ("exit 3", "failed: status 3"), ("true", "")],
)
def test_broken_contender_is_said(program: str, said: str) -> None:
    """A contender that can't run /bin/true here (bwrap without user namespaces) is left out, with its own words."""
    contender = contenders.Contender("x", prefix=("/bin/sh", "-c", program, "--"))
    assert contender.tried().absent == said


def test_too_little_memory_is_said(tiny: parts.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The big caller is skipped where memory lacks; the small one isn't."""
    monkeypatch.setattr(parts, "available_mib", lambda: 10)
    rows = {row.name: row for row in parts.memory(tiny).rows}
    assert rows["nsbox, 64 MB"].note == "skipped: needs 80 MiB, 10 MiB available"
    assert rows["nsbox, 20 MB"].samples


def test_failure_in_a_round_is_an_error() -> None:
    """A command that fails while it is being measured is no sample."""
    with pytest.raises(ChildProcessError, match="status 1"):
        contenders.Contender("x", prefix=("/bin/false",)).spawn()


# ---- the parts

NAMES: dict[str, set[str]] = {}  # of the rows of parts that have run: no part runs twice


@pytest.mark.parametrize("name", bench.PARTS)
def test_part(name: str, tiny: parts.Bench) -> None:
    """Every part gives figures for every contender that is there, and leaves the workspace empty."""
    part = bench.PARTS[name](tiny)
    NAMES[name] = {row.name for row in part.rows}
    assert part.name == name
    for row in part.rows:
        assert row.samples or row.note, row
        is_difference = name == "front"  # of two times, which may be anything on a busy machine
        assert all(math.isfinite(sample) and (sample > 0 or is_difference) for sample in row.samples)
    expected = [row for row in part.rows if row.name.startswith(("Popen", "nsbox", "import"))]
    assert all(row.samples for row in expected if "landlock" not in row.name)  # which not every kernel has
    assert part.comparisons or needs.find("bwrap") is None  # some parts compare with nothing else
    assert os.listdir(tiny.workspace) == []


def test_targets_name_rows_that_exist(tiny: parts.Bench) -> None:
    """Each target finds its rows in a full run (a misspelt one would be "not measured" for ever)."""
    names = {
        name: NAMES.get(name) or {row.name for row in bench.PARTS[name](tiny).rows}
        for name in ("spawn", "overhead", "warm", "rate", "files", "hardening", "import", "front", "network", "python")
    }
    full = {2048: "2 GiB", 20: "20 MB"}
    assert {size: parts.size_name(size) for size in full} == full
    names["memory"] = {f"nsbox, {size}" for size in full.values()}
    names["warm"] |= {f"nsbox warm, {size}" for size in full.values()}
    names["binds"] = {f"{who}, {count} binds" for who in ("nsbox", "bwrap") for count in scale.FULL.binds}
    for _, part, of, against, *_ in report._TARGETS:
        assert {of, against} - {""} <= names[part]


def test_network_lists(tiny: parts.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows have units of their own; what can't be measured says why; ratios are against what has no list."""
    scale = replace(TINY, connections=(30, 100_000))  # for the latter descriptors are limited here
    monkeypatch.setattr(resource, "getrlimit", lambda which: (1024, 20_000))
    part = bench.PARTS["network"](replace(tiny, scale=scale))
    rows = {row.name: row for row in part.rows}
    assert rows["nsbox list, 30 connections"].samples
    assert {row.note for name, row in rows.items() if "100000" in name} == {rows["Popen, 100000 connections"].note}
    assert rows["Popen, 100000 connections"].note.startswith("skipped: needs 200064 open files")
    assert (os.geteuid() == 0) == bool(rows["relay, descriptors"].samples)
    assert rows["relay, memory"].unit == "MiB" and rows["nsbox list, upload"].unit == "MB/s"
    against = {(c.of, c.against, c.is_ratio) for c in part.comparisons}
    assert {
        ("nsbox list, cold", "nsbox none, cold", False),
        ("nsbox list, stock", "nsbox none, stock", True),
        ("nsbox list, connect", "Popen, connect", True),
        ("nsbox list, own loopback, upload", "nsbox none, own loopback, upload", True),
        ("relay, memory", "", False),
    } <= against
    text = report.table(bench.look(), [part], is_quick=True)
    assert " MiB" in text and "<= 4.00 MiB" in text and "to \n" not in text


def test_network_lists_without_a_relay(tiny: parts.Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where lists can't be enforced their rows say so, and those without one are measured."""
    monkeypatch.setattr(relay_process, "_PROGRAM", "/nonexistent")
    part = bench.PARTS["network"](tiny)
    notes = {row.name: row.note for row in part.rows}
    assert all(note.startswith("failed: ") for name, note in notes.items() if name.startswith("nsbox list, "))
    assert part.row("Popen, download").samples and part.row("nsbox none, own loopback, upload").samples
    assert notes["relay, memory"].startswith("failed: ")


def test_rounds_are_interleaved() -> None:
    """Each subject is measured once in each round; warm-up rounds are thrown away."""
    seen: list[str] = []

    def subject(name: str) -> parts.Subject:
        def measure() -> tuple[float, float]:
            seen.append(name)
            return float(len(seen)), 1.0

        return parts.Subject((name, f"{name}, whole"), measure)

    missing = parts.Subject(("c",), lambda: pytest.fail("measured"), "absent")
    rows = parts.interleave([subject("a"), subject("b"), missing], 20, 3, random.Random(1))
    assert [row.name for row in rows] == ["a", "a, whole", "b", "b, whole", "c"]
    assert [len(row.samples) for row in rows] == [20, 20, 20, 20, 0]
    orders = {tuple(seen[i : i + 2]) for i in range(0, len(seen), 2)}
    assert orders == {("a", "b"), ("b", "a")}
    assert min(rows[0].samples) > 6


# ---- the same layers


@needs_bwrap
@pytest.mark.parametrize("has_network", [True, False])
def test_both_get_the_same_sandbox(has_network: bool, workspace: Path) -> None:
    """The worker's layers look the same from inside, whether bwrap or nsbox makes them: files, namespaces, place."""
    layers = contenders.worker(str(workspace), has_network=has_network)
    looks = "ls -A / /dev /tmp; readlink /bin /lib; pwd; touch x; touch /usr/x 2>/dev/null || echo no"
    own = {name: os.readlink(f"/proc/self/ns/{name}") for name in ("user", "mnt", "pid", "ipc", "uts", "cgroup", "net")}
    answers = []
    for contender in (contenders.bwrap("bwrap", layers), contenders.nsbox("nsbox", layers.policy())):
        if contender.tried().absent:
            pytest.skip(contender.tried().absent)
        script = f"{looks}; " + "; ".join(f"readlink /proc/self/ns/{name}" for name in own)
        with contender.start(["/bin/sh", "-c", script], stdout=subprocess.PIPE, text=True) as process:
            lines = process.communicate()[0].splitlines()
        shared = [name for name, here in own.items() if here in lines[-len(own) :]]
        assert shared == (["net"] if has_network else [])
        answers.append(lines[: -len(own)])
    assert answers[0] == answers[1]


def test_bwrap_arguments(workspace: Path) -> None:
    """Layers are said to bwrap as its manual has them."""
    argv = contenders.worker(str(workspace)).bwrap()
    for words in (("--proc", "/proc"), ("--tmpfs", "/tmp"), ("--bind", str(workspace), str(workspace))):
        assert words in {argv[i : i + len(words)] for i in range(len(argv))}
    assert {"--unshare-user", "--unshare-ipc", "--new-session", "--die-with-parent"} <= set(argv)
    assert "--unshare-net" not in argv and argv[-1] == "--"
    assert "--unshare-all" in contenders.worker(str(workspace), has_network=False).bwrap()
    assert contenders.minimal().bwrap() == ("--unshare-user", "--unshare-pid", "--dev-bind", "/", "/", "--")


# ---- figures


@pytest.mark.parametrize(("q", "found"), [(0, 1), (0.5, 2.5), (0.9, 3.7), (1, 4)])
def test_quantile(q: float, found: float) -> None:
    """Quantiles interpolate."""
    assert stats.quantile([4, 1, 3, 2], q) == pytest.approx(found)
    assert stats.quantile([7], q) == 7


def test_comparison() -> None:
    """A ratio or a difference of medians, inside of its interval; what hits both rows alike in a round cancels out."""
    noise = [1, 5, 1, 9, 1, 7, 3, 1, 1, 2]
    a, b = stats.Row("a", tuple(2.0 * n for n in noise)), stats.Row("b", tuple(1.0 * n for n in noise))
    ratio = stats.compare(a, b)
    assert (ratio.value, ratio.low, ratio.high) == (2, 2, 2)
    difference = stats.compare(a, b, is_ratio=False)
    assert difference.value == 1.5 and difference.low <= 1.5 <= difference.high
    assert stats.compare(a, stats.Row("none", (), "absent")) is None


def test_verdicts() -> None:
    """A target holds at its bar, is missed above it, and is open when it wasn't measured."""
    rows = [stats.Row("nsbox worker", (0.4,)), stats.Row("bwrap worker", (1.0,))]
    rows += [stats.Row("nsbox unshare-all", (0.5,)), stats.Row("bwrap unshare-all", (1.0,))]
    part = stats.Part("spawn", "", "ms", rows)
    part.compare([("nsbox worker", "bwrap worker"), ("nsbox unshare-all", "bwrap unshare-all")])
    first, second, *others = (target.holds for target in report.targets([part]))
    assert (first, second, {*others}) == (True, False, {None})
    for rate, holds in ((3.9, False), (4.0, True)):  # one that is to be reached
        both = [
            stats.Row(name, (value,)) for name, value in ((report._WARM_RATE, rate), ("bwrap, own net, 8 threads", 1))
        ]
        fast = stats.Part("rate", "", "1/s", both)
        fast.compare([(both[0].name, both[1].name)])
        assert [target.holds for target in report.targets([fast]) if target.part == "rate"] == [holds]
        assert ">= 4.00x" in report.table(bench.look(), [fast], is_quick=False)
    text = report.table(bench.look(), [part], is_quick=False)
    assert "holds" in text and "MISSED" in text and "not measured" in text


def test_busy_machine_is_said() -> None:
    """The table says when even plain Popen was unsteady."""
    row = stats.Row("Popen", (1.0, 1.0, 1.0, 9.0, 9.0))
    assert "busy" in report.table(bench.look(), [stats.Part("spawn", "", "ms", [row])], is_quick=False)
    row = stats.Row("Popen", (1.0, 1.0, 1.1, 1.1, 1.2))
    assert "busy" not in report.table(bench.look(), [stats.Part("spawn", "", "ms", [row])], is_quick=False)
