"""A shard serves no more connections than it can open files for."""

from __future__ import annotations

import resource

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.http.limits import HttpLimits
from daemon.process.open_files import (
    FILES_PER_SHARD,
    OTHER_FILES,
    fitted,
    limit,
    needed,
    raise_limit,
)


def test_limits_that_fit_stay() -> None:
    limits = HttpLimits()
    assert needed(limits, 64) <= 20_000  # what containers often allow
    assert fitted(limits, needed(limits, 64), 64) is limits
    # A shard has the bell of each one, and a pipe in each direction.
    assert needed(limits, 512) - needed(limits, 2) == 3 * 510


@given(st.integers(OTHER_FILES + 4, 30_000), st.integers(1, 20_000), st.integers(1, 512))
def test_limits_are_lowered_until_the_files_suffice(
    files: int, streams_max: int, shards: int
) -> None:
    limits = HttpLimits(streams_max=streams_max)
    others = OTHER_FILES + FILES_PER_SHARD * shards
    fit = fitted(limits, files, shards)
    assert needed(fit, shards) <= max(files, others + 4)
    assert 1 <= fit.connections_max <= limits.connections_max
    assert 1 <= fit.streams_max <= streams_max
    if fit.connections_max < limits.connections_max:
        assert fit.connections_max == max(files - others, 4) // 2


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
    assert fitted(HttpLimits(), limit(), 1) == HttpLimits()
