"""The load of a simulation: a rate, a range of rates, a curve, or a trace from a file.

=========================  ======================================================================
``20MiB/s``                one rate
``100KiB/s..4GiB/s``       a range: one run at each of several rates, in equal ratios
``0=1MiB/s,60=500MiB/s``   a curve: at these seconds these rates, in a straight line between them
a file                     a trace, CSV or NDJSON: ``time``, ``bytes_per_s``, ``request_bytes``
=========================  ======================================================================

A row of a trace holds until the time of the next one, and the last one as long as the one before.
Times are seconds (only their differences count) or ISO 8601.

Errors are ``ValueError`` that name the value and what it must be. This module reads no clock.
"""

from __future__ import annotations

import csv
import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec

from daemon.config.values import read_size

RATE_MAX = 1 << 50  # bytes per second: a thousand machines of 100 Gbit/s are far below
TRACE_ROWS_MAX = 100_000  # 70 days of minutes
TRACE_BYTES_MAX = 16 << 20
REQUEST_BYTES_MAX = 1 << 30
_COLUMNS = ("time", "bytes_per_s", "request_bytes")


class LoadPiece(NamedTuple):
    """From ``start_s`` to ``end_s`` the rate goes in a straight line from ``first`` to ``last``,
    both in bytes per second."""

    start_s: float
    end_s: float
    first: float
    last: float
    request_bytes: int

    @property
    def duration_s(self) -> float:
        return self.end_s - self.start_s

    @property
    def requests(self) -> float:
        """How many requests are expected in it."""
        return self.duration_s * (self.first + self.last) / 2 / self.request_bytes

    def requests_until(self, at_s: float) -> float:
        """How many of them until a time within it."""
        passed = at_s - self.start_s
        slope = (self.last - self.first) / self.duration_s
        return passed * (self.first + slope * passed / 2) / self.request_bytes

    def when(self, requests: float) -> float:
        """The time within it until which this many are expected."""
        slope = (self.last - self.first) / self.duration_s
        wanted = requests * self.request_bytes
        # first t + slope t^2 / 2 = wanted; this form of the root has no difference of like numbers.
        root = math.sqrt(max(0.0, self.first * self.first + 2 * slope * wanted))
        both = self.first + root
        return self.start_s + (min(self.duration_s, 2 * wanted / both) if both else 0.0)


class LoadCurve:
    """The rate over time, in all, from second 0 on."""

    def __init__(self, pieces: Sequence[LoadPiece]) -> None:
        self.pieces = tuple(piece for piece in pieces if piece.duration_s > 0)
        self.duration_s = self.pieces[-1].end_s
        self._ends = list(accumulate(piece.requests for piece in self.pieces))
        self._starts_s = [piece.start_s for piece in self.pieces]

    @property
    def requests(self) -> float:
        """How many requests are expected in all."""
        return self._ends[-1]

    @property
    def bytes(self) -> float:
        """How many bytes are expected in all."""
        return sum(piece.requests * piece.request_bytes for piece in self.pieces)

    @property
    def bytes_per_s(self) -> float:
        """The mean rate."""
        return self.bytes / self.duration_s

    def at(self, at_s: float) -> tuple[float, int]:
        """The rate in bytes per second and the size of requests at a time."""
        index = min(max(0, bisect_right(self._starts_s, at_s) - 1), len(self.pieces) - 1)
        piece = self.pieces[index]
        share = min(1.0, max(0.0, (at_s - piece.start_s) / piece.duration_s))
        return piece.first + (piece.last - piece.first) * share, piece.request_bytes

    def requests_until(self, at_s: float) -> float:
        """How many requests are expected until a time."""
        index = min(max(0, bisect_right(self._starts_s, at_s) - 1), len(self.pieces) - 1)
        before = self._ends[index - 1] if index else 0.0
        return before + self.pieces[index].requests_until(min(at_s, self.pieces[index].end_s))

    def when(self, requests: float) -> tuple[float, int]:
        """The time until which this many requests are expected, and the size of the next one;
        infinity if there are not that many."""
        index = bisect_right(self._ends, requests)
        if index == len(self._ends):
            return math.inf, 0
        piece = self.pieces[index]
        return piece.when(requests - (self._ends[index - 1] if index else 0.0)), piece.request_bytes

    def within(self, duration_s: float) -> LoadCurve:
        """The same loads played in ``duration_s``: each lasts shorter, or longer."""
        factor = duration_s / self.duration_s
        return LoadCurve(
            [p._replace(start_s=p.start_s * factor, end_s=p.end_s * factor) for p in self.pieces]
        )


def constant(bytes_per_s: float, request_bytes: int, duration_s: float) -> LoadCurve:
    """One rate."""
    return LoadCurve([LoadPiece(0.0, duration_s, bytes_per_s, bytes_per_s, request_bytes)])


class Rate(NamedTuple):
    """One load for as long as the simulation lasts."""

    bytes_per_s: float


class RateRange(NamedTuple):
    """One run at each of several loads, in equal ratios."""

    low: float
    high: float

    def rates(self, count: int) -> list[float]:
        """``count`` rates from the lowest to the highest."""
        ratio = (self.high / self.low) ** (1 / (count - 1))
        return [self.low * ratio**step for step in range(count - 1)] + [self.high]


Load = Rate | RateRange | LoadCurve


def read_rate(text: str) -> float:
    """Bytes per second: ``20MiB/s``."""
    number, slash, unit = text.strip().partition("/")
    try:
        if not slash or unit.strip() != "s":
            raise ValueError
        rate = read_size(number.strip())
    except ValueError:
        raise ValueError(f"a rate must be like 20MiB/s, got {text.strip()!r}") from None
    if not 0 < rate <= RATE_MAX:
        raise ValueError(f"a rate must be above 0 and at most {RATE_MAX >> 40} TiB/s, got {text!r}")
    return float(rate)


def read_load(text: str, request_bytes: int) -> Load:
    """What ``--load`` says, in the forms of the module's head."""
    path = Path(text)
    if path.suffix in (".csv", ".ndjson", ".jsonl") or (path.is_file() and "=" not in text):
        return read_trace(path, request_bytes)
    low, dots, high = text.partition("..")
    if dots:
        load = RateRange(read_rate(low), read_rate(high))
        if load.low >= load.high:
            raise ValueError(f"the first rate of a range must be below the second, got {text!r}")
        return load
    if "=" not in text:
        return Rate(read_rate(text))
    points: list[tuple[float, float]] = []
    for each in text.split(","):
        at, _, rate = each.partition("=")
        at_s = _finite(at, f"the time of {each.strip()!r} in the load")
        points.append((at_s, 0.0 if rate.strip() in ("0", "0/s") else read_rate(rate)))
    if len(points) < 2:
        raise ValueError(f"a curve needs two points or more, got {text!r}")
    return _curve(points, request_bytes)


def _curve(points: Sequence[tuple[float, float]], request_bytes: int) -> LoadCurve:
    first_s = points[0][0]
    for (before, _), (after, _) in pairwise(points):
        if after < before:
            raise ValueError(f"times of a load must not fall: {after:g} comes after {before:g}")
    pieces = [
        LoadPiece(start - first_s, end - first_s, first, last, request_bytes)
        for (start, first), (end, last) in pairwise(points)
    ]
    if points[-1][0] == first_s:
        raise ValueError(f"all points of the load are at {first_s:g} s: it has no duration")
    return _nonzero(LoadCurve(pieces))


def _nonzero(curve: LoadCurve) -> LoadCurve:
    if not curve.requests:
        raise ValueError("the load is 0 all the time: there is nothing to simulate")
    return curve


# Traces


class _Row(NamedTuple):
    """A row of a trace."""

    at_s: float
    bytes_per_s: float
    request_bytes: int


def read_trace(path: Path, request_bytes: int) -> LoadCurve:
    """A trace from a file; rows without a size of requests have ``request_bytes``."""
    try:
        with path.open("rb") as file:
            found = file.read(TRACE_BYTES_MAX + 1)
    except OSError as error:
        raise ValueError(f"cannot read the trace {path}: {error.strerror}") from None
    if len(found) > TRACE_BYTES_MAX:
        raise ValueError(f"the trace {path} has more than {TRACE_BYTES_MAX >> 20} MiB")
    try:
        text = found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the trace {path} is not UTF-8: {error}") from None
    read = _csv_rows if path.suffix == ".csv" else _ndjson_rows
    rows: list[_Row] = []
    for line, values in read(text, path):
        place = f"{path}, line {line}"
        rows.append(_row(values, request_bytes, place))
        if len(rows) > TRACE_ROWS_MAX:
            raise ValueError(f"{place}: a trace has at most {TRACE_ROWS_MAX:,} rows")
        if len(rows) > 1 and rows[-1].at_s <= rows[-2].at_s:
            raise ValueError(
                f"{place}: times must rise, got {values[0]!r} after one that is not earlier"
            )
    if len(rows) < 2:
        raise ValueError(f"the trace {path} has {len(rows)} rows; it needs two or more")
    first_s = rows[0].at_s
    ends = [row.at_s - first_s for row in rows[1:]]
    ends.append(2 * ends[-1] - (ends[-2] if len(ends) > 1 else 0.0))
    return _nonzero(
        LoadCurve(
            [
                LoadPiece(
                    row.at_s - first_s, end_s, row.bytes_per_s, row.bytes_per_s, row.request_bytes
                )
                for row, end_s in zip(rows, ends, strict=True)
            ]
        )
    )


def _csv_rows(text: str, path: Path) -> Iterator[tuple[int, list[object]]]:
    rows = csv.reader(text.splitlines(), strict=True)
    order: list[int] | None = None
    try:
        for cells in rows:
            if not cells:
                continue
            if order is None:
                order = _order([cell.strip() for cell in cells], path, rows.line_num)
                if order != [-1]:
                    continue
                order = [0, 1, 2]
            yield (
                rows.line_num,
                [cells[index].strip() if -1 < index < len(cells) else "" for index in order],
            )
    except csv.Error as error:
        raise ValueError(f"{path}, line {rows.line_num}: not CSV: {error}") from None


def _order(cells: list[str], path: Path, line: int) -> list[int]:
    """The columns of a head line; [-1] if the first line already has values."""
    if "time" in cells and "bytes_per_s" in cells:
        return [cells.index(name) if name in cells else -1 for name in _COLUMNS]
    try:
        _time(cells[0], "")
        return [-1]
    except ValueError:
        raise ValueError(
            f"{path}, line {line}: the head must name the columns time and bytes_per_s, and may"
            f" name request_bytes; got {','.join(cells)!r}"
        ) from None


def _ndjson_rows(text: str, path: Path) -> Iterator[tuple[int, list[object]]]:
    for line, each in enumerate(text.split("\n"), 1):
        if not each.strip():
            continue
        try:
            value = msgspec.json.decode(each.encode())
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"{path}, line {line}: not JSON: {error}") from None
        if not isinstance(value, dict):
            raise ValueError(f"{path}, line {line}: a line must be an object with {_COLUMNS[:2]}")
        yield line, [value.get(name, "") for name in _COLUMNS]


def _row(values: Sequence[object], request_bytes: int, place: str) -> _Row:
    at, rate, size = values
    at_s = _time(at, f"{place}: time")
    bytes_per_s = _finite(rate, f"{place}: bytes_per_s")
    if not 0 <= bytes_per_s <= RATE_MAX:
        raise ValueError(f"{place}: bytes_per_s must be 0 to {RATE_MAX}, got {rate!r}")
    if size in ("", None):
        return _Row(at_s, bytes_per_s, request_bytes)
    found = _finite(size, f"{place}: request_bytes")
    if not 1 <= found <= REQUEST_BYTES_MAX:
        raise ValueError(f"{place}: request_bytes must be 1 to {REQUEST_BYTES_MAX}, got {size!r}")
    return _Row(at_s, bytes_per_s, round(found))


def _time(value: object, name: str) -> float:
    """Seconds, from a number or ISO 8601."""
    try:
        return _finite(value, name)
    except ValueError:
        try:
            moment = datetime.fromisoformat(str(value))
            return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
        except (ValueError, OverflowError):
            raise ValueError(
                f"{name} must be a number of seconds or an ISO 8601 time, got {value!r}"
            ) from None


def _finite(value: object, name: str) -> float:
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        raise ValueError(f"{name} must be a number, got {value!r}") from None
    if not math.isfinite(number):
        raise ValueError(f"{name} must be a finite number, got {value!r}")
    return number
