"""A shard serves no more connections than it can open files for."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.http.limits import HttpLimits
from daemon.open_files import OTHER_FILES, fitted, limit, needed, raise_limit


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


def test_the_soft_limit_is_raised_to_the_hard_one() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, before[1]))
        raise_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (before[1], before[1])
        assert limit() == before[1]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_no_limit_is_a_large_one(monkeypatch: pytest.MonkeyPatch) -> None:
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    assert fitted(HttpLimits(), limit()) == HttpLimits()
