"""A gate closes and opens once per edge, and stays as it is between its thresholds."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from daemon.governor.gate import DRAINED_NS, Band, Gate
from tests.long import examples

S = 1_000_000_000
TICK_NS = S // 10


class Source:
    """What a gate does to its source, in order."""

    def __init__(self, band: Band | None = None) -> None:
        self.told: list[str] = []
        self.gate = Gate(
            band or Band(), lambda: self.told.append("pause"), lambda: self.told.append("resume")
        )


def test_a_gate_closes_above_0_80_and_opens_below_0_65_exactly() -> None:
    source = Source()
    for level, is_open in [
        (0.0, True), (0.79, True), (0.80, True), (math.nextafter(0.80, 1), False),
        (0.80, False), (0.65, False), (math.nextafter(0.65, 0), True), (0.80, True), (1.0, False),
    ]:  # fmt: skip
        assert source.gate.look(level, 0) == is_open, level
    assert source.told == ["pause", "resume", "pause"]


bands = (
    st.tuples(st.floats(0.001, 1), st.floats(0.001, 1))
    .map(sorted)
    .filter(lambda pair: pair[0] < pair[1])
    .map(lambda pair: Band(pair[1], pair[0]))
)
levels = st.one_of(st.floats(0, 1), st.sampled_from([0.65, 0.8, 1.0, math.nan]))


@given(bands, st.lists(st.tuples(levels, st.booleans()), max_size=200))
@settings(max_examples=examples(200))
def test_pause_and_resume_alternate_and_each_has_its_cause(
    band: Band, samples: list[tuple[float, bool]]
) -> None:
    """The model has no state but the last edge, and a look back over the samples."""
    source = Source(band)
    is_open, drained = True, 0
    for number, (level, is_drained) in enumerate(samples):
        drained = drained + 1 if is_drained else 0
        edges = len(source.told)
        opened = source.gate.look(level, number * TICK_NS, is_drained=is_drained)
        above, below = level > band.pause_above, level < band.resume_below
        cannot_lower_it = (drained - 1) * TICK_NS >= DRAINED_NS and level <= band.pause_above
        if is_open and above:
            assert source.told[edges:] == ["pause"]
            is_open = False
        elif not is_open and (below or cannot_lower_it):
            assert source.told[edges:] == ["resume"]
            is_open = True
        else:
            assert len(source.told) == edges
        assert opened == is_open == source.gate.is_open
    assert source.told == ["pause", "resume"] * (len(source.told) // 2) + ["pause"] * (not is_open)


def test_a_sensor_that_is_broken_neither_closes_a_gate_nor_opens_it() -> None:
    source = Source()
    assert source.gate.look(math.nan, 0)
    source.gate.look(0.9, S)
    for tick in range(100):
        assert not source.gate.look(math.nan, tick * S, is_drained=True)
    assert source.told == ["pause"]


def test_pressure_that_the_source_does_not_cause_does_not_keep_it_out_for_good() -> None:
    source = Source()
    source.gate.look(0.9, 0)
    for tick in range(100):  # what it brought in is being stored
        assert not source.gate.look(0.7, tick * S, is_drained=False)
    assert not source.gate.look(0.7, 100 * S, is_drained=True)
    assert not source.gate.look(0.7, 100 * S + DRAINED_NS - 1, is_drained=True)
    assert source.gate.look(0.7, 100 * S + DRAINED_NS, is_drained=True)
    assert not source.gate.look(0.81, 200 * S, is_drained=True)
    assert not source.gate.look(0.81, 300 * S, is_drained=True)  # above, it stays closed
    assert source.told == ["pause", "resume", "pause"]


def test_a_gate_that_pauses_above_1_never_closes() -> None:
    source = Source(Band(1, 0.65))
    assert source.gate.look(1.0, 0)
    assert not source.told


@pytest.mark.parametrize(
    ("pause_above", "resume_below"),
    [(0.65, 0.8), (0.8, 0.8), (1.01, 0.5), (0.5, 0), (0.5, -1), (math.nan, 0.5), (0.5, math.nan)],
)
def test_thresholds_out_of_order_are_refused(pause_above: float, resume_below: float) -> None:
    with pytest.raises(ValueError, match="a gate cannot pause above"):
        Band(pause_above, resume_below)
