"""The figures as a picture. Only this module imports matplotlib, and only to draw."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nsbox._cli.bench.results.machine import Machine
from nsbox._cli.bench.results.stats import Part, figure

HINT = "drawing needs matplotlib: pip install 'nsbox[bench]'"

_COLORS = {"Popen": "#8c8c8c", "bwrap": "#d98032", "nsbox": "#2f6fb0"}
_OTHER = "#b8b8b8"


def is_possible() -> bool:
    """Say whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def _family(name: str) -> str:
    return next((family for family in _COLORS if family in name), "")


def _color(name: str) -> str:
    return _COLORS.get(_family(name), _OTHER)


def _bars(axes: Any, part: Part) -> None:
    """Draw horizontal bars, the first row on top: p50, with p90 pale behind it."""
    bars = [(row.name, row.p50, row.p90) for row in part.rows if row.p50 is not None and row.p90 is not None]
    widest = max((p90 for _, _, p90 in bars), default=1.0)
    for place, (name, p50, p90) in enumerate(bars):
        axes.barh(place, p90, color=_color(name), height=0.7, alpha=0.3)
        axes.barh(place, p50, color=_color(name), height=0.7)
        axes.text(p90 + widest * 0.02, place, f"{figure(p50)} ({figure(p90)})", va="center", fontsize=8)
    axes.set_yticks(list(range(len(bars))), [name for name, _, _ in bars])
    axes.set_xlim(0, widest * 1.25)
    axes.invert_yaxis()
    axes.set_xlabel(f"{part.unit}: p50 (pale: p90)")


def _lines(axes: Any, part: Part, word: str, names: Sequence[str]) -> None:
    """Draw one line for each family, over the number in "family, number word"."""
    for family in names:
        rows = [row for row in part.rows if row.name.startswith(f"{family}, ") and row.p50 is not None]
        numbers = [int(row.name.split(", ")[1].split()[0]) for row in rows]
        heights = [row.p50 for row in rows]
        if rows:
            axes.plot(numbers, heights, marker="o", color=_COLORS[family], label=family)
            axes.annotate(
                figure(heights[-1]), (numbers[-1], heights[-1]), textcoords="offset points", xytext=(6, 4), fontsize=8
            )
    axes.set_xlabel(word)
    axes.set_ylabel(f"{part.unit}, p50")
    axes.grid(True, alpha=0.3)
    if axes.lines:
        axes.legend(frameon=False)


def _draw_binds(axes: Any, part: Part) -> None:
    _lines(axes, part, "extra read-only binds", ("bwrap", "nsbox"))
    axes.set_xscale("symlog", linthresh=10)
    axes.set_xticks([0, 10, 100, 1000], ["0", "10", "100", "1000"])
    axes.set_yscale("log")
    axes.set_title("extra read-only binds")


def _draw_threads(axes: Any, part: Part) -> None:
    _lines(axes, part, "threads", ("Popen", "bwrap", "nsbox"))
    axes.set_xticks([1, 4, 8])
    axes.set_ylim(bottom=0)
    axes.set_title("/bin/true a second, worker layers")


def _ratios(axes: Any, part: Part) -> None:
    """Draw ratios, for rows that have different units."""
    ratios = [c for c in part.comparisons if c.is_ratio]
    for place, ratio in enumerate(ratios):
        axes.barh(place, ratio.value, color=_color(ratio.of), height=0.7)
        axes.text(ratio.value, place, f" {figure(ratio.value)}", va="center", fontsize=8)
    axes.set_yticks(list(range(len(ratios))), [ratio.of for ratio in ratios])
    axes.axvline(1, color=_OTHER)
    axes.invert_yaxis()


def _draw_network(axes: Any, part: Part) -> None:
    _ratios(axes, part)
    axes.set_xlabel("p50 as a multiple of that without a network list, or outside")
    axes.set_title("network lists")


def _draw_python(axes: Any, part: Part) -> None:
    _ratios(axes, part)
    axes.set_xlabel("p50 as a multiple of that outside")
    axes.set_title("Python: branches, kernels, map()")


# Parts of which each row is a bar, and their titles.
_TITLES = {
    "spawn": "/bin/true, Popen() to the end of wait()",
    "overhead": "the constructor of Popen, and the C call in it",
    "warm": "a command in a copy of what a Sandbox keeps",
    "rate": "commands a second from eight threads",
    "memory": "small and big caller, worker layers",
    "files": "work on many small files",
    "transaction": "the same on an overlay",
    "hardening": "seccomp profiles: a spawn, loops of system calls",
    "import": "a new interpreter",
    "front": "bubblewrap's command line",
    "leaks": "looking for secrets in a log",
    "grep": "a search in many files",
    "calls": "tool calls with much output",
}
_DRAW: Mapping[str, Callable[[Any, Part], None]] = {
    "binds": _draw_binds,
    "threads": _draw_threads,
    "network": _draw_network,
    "python": _draw_python,
}


def draw(path: str, machine: Machine, parts: Sequence[Part], *, is_quick: bool) -> None:
    """Write the picture as a PNG; needs matplotlib, but no display."""
    figure_module = importlib.import_module("matplotlib.figure")
    columns = min(2, len(parts))
    lines = -(-len(parts) // columns)
    figure = figure_module.Figure(figsize=(7.5 * columns, 3.6 * lines + 0.8), layout="constrained")
    grid = figure.subplots(lines, columns, squeeze=False)
    places = [axes for line in grid for axes in line]
    for axes, part in zip(places, parts, strict=False):
        if part.name in _TITLES:
            _bars(axes, part)
            axes.set_title(_TITLES[part.name])
        else:
            _DRAW[part.name](axes, part)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in places[len(parts) :]:
        axes.set_axis_off()
    title = "nsbox bench" + (" (a quick run: don't quote)" if is_quick else "")
    figure.suptitle(f"{title}\n{machine}", fontsize=9)
    figure.savefig(path, dpi=120, format="png")
