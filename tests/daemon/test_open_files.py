"""A shard serves no more connections than it can open files for."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from daemon.http.limits import HttpLimits
from daemon.open_files import OTHER_FILES, fitted, needed


def test_limits_that_fit_stay() -> None:
    limits = HttpLimits()
    assert needed(limits) <= 20_000  # what containers often allow
    assert fitted(limits, needed(limits)) is limits


@given(st.integers(OTHER_FILES + 4, 30_000), st.integers(1, 20_000))
def test_limits_are_lowered_until_the_files_suffice(files: int, streams_max: int) -> None:
    limits = HttpLimits(streams_max=streams_max)
    fit = fitted(limits, files)
    assert needed(fit) <= max(files, OTHER_FILES + 4)
    assert 1 <= fit.connections_max <= limits.connections_max
    assert 1 <= fit.streams_max <= streams_max
    if fit.connections_max < limits.connections_max:
        assert fit.connections_max == (files - OTHER_FILES) // 2
