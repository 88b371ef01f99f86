"""Figures: samples of one row, quantiles, and comparisons of two rows with their uncertainty. Pure."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

_RESAMPLES = 400


def quantile(samples: Sequence[float], q: float) -> float:
    """Return the q-quantile (0 to 1) of at least one sample, by linear interpolation."""
    ordered = sorted(samples)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


def median(samples: Sequence[float]) -> float:
    """Return the p50."""
    return quantile(samples, 0.5)


def figure(value: float | None) -> str:
    """Return a measured value with about three digits; "-" for None."""
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 1000 else f"{value:.1f}" if value >= 100 else f"{value:.2f}"


@dataclass(frozen=True, slots=True)
class Row:
    """One contender's samples in a part; if it couldn't run, none, and a note that says why.

    unit: of the samples; "" for the part's.
    """

    name: str
    samples: tuple[float, ...] = ()
    note: str = ""
    unit: str = ""

    @property
    def p50(self) -> float | None:
        """The median; None without samples."""
        return median(self.samples) if self.samples else None

    @property
    def p90(self) -> float | None:
        """The 90 % quantile; None without samples."""
        return quantile(self.samples, 0.9) if self.samples else None


@dataclass(frozen=True, slots=True)
class Comparison:
    """The p50 of one row divided by that of another; if is_ratio is False, their difference.

    of, against: the names of the rows. If against is "", value is the p50 itself.
    low, high: a 95 % interval of the value.
    unit: of a value that isn't a ratio.
    """

    of: str
    against: str
    value: float
    low: float
    high: float
    is_ratio: bool = True
    unit: str = "ms"


def _ratio(a: float, b: float) -> float:
    return a / b


def _difference(a: float, b: float) -> float:
    return a - b


def compare(a: Row, b: Row, *, is_ratio: bool = True) -> Comparison | None:
    """Return the comparison of the medians of two rows from the same rounds; None if either has no samples.

    The interval comes from a bootstrap over rounds. Both rows are resampled by the same rounds: they were measured side
    by side, so whatever slowed down one also slowed down the other.
    """
    if not a.samples or not b.samples:
        return None
    combine: Callable[[float, float], float] = _ratio if is_ratio else _difference
    rng = random.Random(0)
    rounds = range(min(len(a.samples), len(b.samples)))
    values = []
    for _ in range(_RESAMPLES):
        chosen = rng.choices(rounds, k=len(rounds))
        values.append(combine(median([a.samples[i] for i in chosen]), median([b.samples[i] for i in chosen])))
    value = combine(median(a.samples), median(b.samples))
    return Comparison(a.name, b.name, value, quantile(values, 0.025), quantile(values, 0.975), is_ratio)


@dataclass(slots=True)
class Part:
    """One part of the suite: its rows, and the comparisons between them."""

    name: str
    title: str
    unit: str
    rows: list[Row] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)

    def row(self, name: str) -> Row | None:
        """Return the row of this name; None if there is none."""
        return next((row for row in self.rows if row.name == name), None)

    def compare(self, pairs: Iterable[tuple[str, str]], *, is_ratio: bool = True) -> None:
        """Add the comparisons of these pairs of rows, (of, against), if both have samples."""
        for of, against in pairs:
            a, b = self.row(of), self.row(against)
            comparison = compare(a, b, is_ratio=is_ratio) if a is not None and b is not None else None
            if comparison is not None:
                self.comparisons.append(comparison)

    def state(self, name: str) -> None:
        """Add the p50 of this row by itself, if it has samples."""
        row = self.row(name)
        if row is not None and row.p50 is not None:
            self.comparisons.append(Comparison(name, "", row.p50, row.p50, row.p50, False, row.unit or self.unit))

    def comparison(self, of: str, against: str, *, is_ratio: bool = True) -> Comparison | None:
        """Return the comparison of these two rows, of this kind; None if there is none."""
        wanted = of, against, is_ratio
        return next((c for c in self.comparisons if (c.of, c.against, c.is_ratio) == wanted), None)
