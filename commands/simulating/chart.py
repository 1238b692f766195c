"""A chart as SVG: panels one under the other over a common axis, one line per strategy.

Written by hand: a few hundred numbers need no plotting library. Lines differ in color, dashes and
marks, so that they can be told apart without color. Colors follow the reader's light or dark
scheme; without one, the chart is light.

This module knows nothing of strategies and loads: it draws numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple
from xml.sax.saxutils import escape

_SVG = "http://www.w3.org/2000/svg"
_WIDTH = 760
_LEFT, _RIGHT, _TOP = 84, 44, 92
_PANEL_HEIGHT, _PANEL_GAP, _BOTTOM = 180, 44, 56
_TICKS_MAX = 7
_SPAN_MIN = 1e-9  # values that differ by less are one
_MARKS_MAX = 30  # a line with more points has no marks
_DASHES = ("7 4", "2 3", "", "9 3 2 3")
_STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.name { font-weight: 600; }
.paper { fill: #ffffff; }
.grid { stroke: #d8dee4; stroke-width: 1; }
.frame { stroke: #59636e; stroke-width: 1; fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.s2 { stroke-width: 4; }
.s0 { stroke: #0550ae; } .m0 { fill: #0550ae; }
.s1 { stroke: #bc4c00; } .m1 { fill: #bc4c00; }
.s2 { stroke: #1a7f37; } .m2 { fill: #1a7f37; }
.s3 { stroke: #8250df; } .m3 { fill: #8250df; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.paper { fill: #0d1117; }
.grid { stroke: #30363d; }
.frame { stroke: #8d96a0; }
.s0 { stroke: #6cb6ff; } .m0 { fill: #6cb6ff; }
.s1 { stroke: #ffa657; } .m1 { fill: #ffa657; }
.s2 { stroke: #56d364; } .m2 { fill: #56d364; }
.s3 { stroke: #d2a8ff; } .m3 { fill: #d2a8ff; }
}
"""


class Axis(NamedTuple):
    """``text`` prints a tick; a logarithmic axis has its ticks at powers of ``base``, a linear one
    at round multiples of a power of ``unit``."""

    name: str
    text: Callable[[float], str]
    base: int = 0  # 0: linear
    unit: int = 1


class Line(NamedTuple):
    """One line of a panel; its number is that of the legend."""

    number: int
    points: Sequence[tuple[float, float]]


class Panel(NamedTuple):
    """One set of axes; ``axis`` is the vertical one."""

    axis: Axis
    lines: Sequence[Line]


class _Scale:
    """Places of values on an axis of some length in pixels."""

    def __init__(self, axis: Axis, values: Sequence[float], start: float, end: float) -> None:
        self._log = axis.base > 0
        self._start, self._end = start, end
        if self._log:
            positive = [value for value in values if value > 0] or [1.0]
            self.ticks = _powers(min(positive), max(positive), axis.base)
            self.low, self.high = min(self.ticks[0], *positive), max(self.ticks[-1], *positive)
        else:
            self.ticks = _even(min(0.0, *values), max(values), axis.unit)
            self.low, self.high = self.ticks[0], self.ticks[-1]

    def place(self, value: float) -> float:
        """The pixel of a value; what a logarithm cannot show is at the low end."""
        low, high = self.low, self.high
        if self._log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, low))
        return self._start + (self._end - self._start) * (value - low) / (high - low)


def _powers(low: float, high: float, base: int) -> list[float]:
    """Powers of the base that enclose the values; with many, every second, third, ... one."""
    first = math.floor(math.log(low, base) + 1e-9)
    last = max(first + 1, math.ceil(math.log(high, base) - 1e-9))
    step = -(-(last - first) // (_TICKS_MAX - 1))
    return [float(base) ** exponent for exponent in range(first, last + step, step)]


def _even(low: float, high: float, unit: int) -> list[float]:
    """Round numbers at equal distances that enclose the values."""
    raw = max(high - low, _SPAN_MIN) / (_TICKS_MAX - 2)
    power = 1.0
    while unit > 1 and power * unit <= raw:
        power *= unit
    power *= 10.0 ** math.floor(math.log10(raw / power))
    step = next(each * power for each in (1, 2, 5, 10) if each * power >= raw)
    first, last = math.floor(low / step), math.ceil(high / step)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


def draw(title: str, names: Sequence[str], across: Axis, panels: Sequence[Panel]) -> str:
    """The chart as the text of an SVG file; ``names`` are the lines of the legend."""
    height = _TOP + len(panels) * (_PANEL_HEIGHT + _PANEL_GAP) - _PANEL_GAP + _BOTTOM
    right = _WIDTH - _RIGHT
    values = [x for panel in panels for line in panel.lines for x, _ in line.points]
    scale = _Scale(across, values, _LEFT, right)
    size = f'width="{_WIDTH}" height="{height}"'
    parts = [
        f'<svg xmlns="{_SVG}" viewBox="0 0 {_WIDTH} {height}" {size} role="img">',
        f"<title>{escape(title)}</title>",
        f"<style>{_STYLE}</style>",
        f'<rect class="paper" {size}/>',
        _text(_LEFT, 24, title, "start", "title"),
        *_legend(names),
    ]
    for number, panel in enumerate(panels):
        top = _TOP + number * (_PANEL_HEIGHT + _PANEL_GAP)
        parts += _panel(panel, scale, top)
    bottom = height - _BOTTOM
    for tick in scale.ticks:
        parts.append(_text(scale.place(tick), bottom + 18, across.text(tick), "middle"))
    parts.append(_text((_LEFT + right) / 2, bottom + 40, across.name, "middle", "name"))
    return "\n".join([*parts, "</svg>", ""])


def _legend(names: Sequence[str]) -> Iterator[str]:
    place = float(_LEFT)
    for number, name in enumerate(names):
        ends = f'x1="{place}" y1="44" x2="{place + 34}" y2="44"'
        yield f'<line class="line s{number}" {ends}{_dash(number)}/>'
        yield _mark(number, place + 17, 44)
        yield _text(place + 42, 48, name, "start")
        place += 42 + 7.2 * len(name) + 26


def _panel(panel: Panel, across: _Scale, top: float) -> Iterator[str]:
    right, bottom = _WIDTH - _RIGHT, top + _PANEL_HEIGHT
    scale = _Scale(panel.axis, [y for line in panel.lines for _, y in line.points], bottom, top)
    yield _text(_LEFT, top - 8, panel.axis.name, "start", "name")
    for tick in scale.ticks:
        y = scale.place(tick)
        yield f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
        yield _text(_LEFT - 8, y + 4, panel.axis.text(tick), "end")
    for tick in across.ticks:
        x = across.place(tick)
        yield f'<line class="grid" x1="{x:.1f}" y1="{top}" x2="{x:.1f}" y2="{bottom}"/>'
    yield (
        f'<rect class="frame" x="{_LEFT}" y="{top}" width="{right - _LEFT}"'
        f' height="{_PANEL_HEIGHT}"/>'
    )
    # The line without dashes comes first, so that what runs on it is seen.
    for line in sorted(panel.lines, key=lambda each: bool(_dash(each.number))):
        places = [(across.place(x), scale.place(y)) for x, y in line.points]
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline class="line s{line.number}" points="{points}"{_dash(line.number)}/>'
        if len(places) <= _MARKS_MAX:
            for x, y in places:
                yield _mark(line.number, x, y)


def _dash(number: int) -> str:
    dashes = _DASHES[number % len(_DASHES)]
    return f' stroke-dasharray="{dashes}"' if dashes else ""


def _mark(number: int, x: float, y: float) -> str:
    """A disk, a square, a triangle or a diamond."""
    kind = number % 4
    if kind == 0:
        return f'<circle class="m0" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
    corners = (((-3, -3), (3, -3), (3, 3), (-3, 3)), ((0, -4), (4, 3), (-4, 3)),
               ((0, -4.5), (4.5, 0), (0, 4.5), (-4.5, 0)))[kind - 1]  # fmt: skip
    points = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners)
    return f'<polygon class="m{number}" points="{points}"/>'


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    named = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'
