"""The chart: valid XML with a legend, axes with names and units, in light and dark colors."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands.simulating.chart import Axis, Line, Panel, draw

SVG = "{http://www.w3.org/2000/svg}"
LOG = Axis("dollars", lambda value: f"${value:g}", base=10)
LINEAR = Axis("seconds", lambda value: f"{value:g} s")


def texts(chart: str) -> list[str | None]:
    return [each.text for each in ElementTree.fromstring(chart).iter(f"{SVG}text")]


def test_a_chart_has_a_title_a_legend_and_axes_with_names_and_ticks() -> None:
    lines = [Line(0, [(0, 5), (10, 900)]), Line(1, [(0, 5), (10, 50)])]
    chart = draw("Cost & <time>", ["one", "two"], LINEAR, [Panel(LOG, lines)])
    found = texts(chart)
    for expected in ("Cost & <time>", "one", "two", "dollars", "seconds", "$1", "$10", "$1000",
                     "0 s", "10 s"):  # fmt: skip
        assert expected in found, expected
    root = ElementTree.fromstring(chart)
    assert len(list(root.iter(f"{SVG}polyline"))) == 2
    assert "prefers-color-scheme: dark" in chart


def test_lines_differ_without_color() -> None:
    chart = draw("t", ["a", "b", "c", "d"], LINEAR, [
        Panel(LOG, [Line(number, [(0, 1), (1, 2)]) for number in range(4)])
    ])  # fmt: skip
    dashes = re.findall(r'<polyline[^>]*points="[^"]*"([^>]*)/>', chart)
    assert len(set(dashes)) == 4


def test_every_color_class_has_a_light_and_a_dark_color() -> None:
    style = draw("t", ["a"], LINEAR, [Panel(LOG, [Line(0, [(0, 1)])])])
    light, dark = style.split("@media", 1)
    for name in (
        *(f".s{n} " for n in range(4)),
        *(f".m{n} " for n in range(4)),
        ".paper ",
        "text ",
    ):
        assert name in light
        assert name in dark


@pytest.mark.parametrize("axis", [LOG, LINEAR, Axis("bytes", str, unit=1024), Axis("n", str, 2)])
@given(
    st.lists(
        st.tuples(st.floats(0, 1e6), st.one_of(st.just(0.0), st.floats(1e-6, 1e13))),
        min_size=1,
        max_size=40,
    )
)
def test_all_points_are_within_the_frame_and_ticks_are_few(
    axis: Axis, points: list[tuple[float, float]]
) -> None:
    chart = draw("t", ["a"], LINEAR, [Panel(axis, [Line(0, points)])])
    root = ElementTree.fromstring(chart)
    frame = next(each for each in root.iter(f"{SVG}rect") if each.get("class") == "frame")
    left, top, width, height = (
        float(frame.get(name, "")) for name in ("x", "y", "width", "height")
    )
    line = next(root.iter(f"{SVG}polyline")).get("points", "")
    for place in line.split():
        x, y = map(float, place.split(","))
        assert left - 0.1 <= x <= left + width + 0.1
        assert top - 0.1 <= y <= top + height + 0.1
    assert len(texts(chart)) <= 4 + 2 * 9
