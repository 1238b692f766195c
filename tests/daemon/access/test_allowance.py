"""Idempotency keys: limits of a token and of the daemon, taken together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.access.allowance import Allowance, Allowances
from daemon.access.token_file import Scope, TokenFile
from daemon.schemas.errors import ApiError
from shards.clock import monotonic_ns
from shards.layout import Layout
from shards.segment import Segment

A_MINUTE = 1 / 60  # one, and none more for as long as a test takes


@pytest.fixture
def segment() -> Iterator[Segment]:
    made = Segment.create(Layout(2, 4096))
    yield made
    made.close()


def of_token(
    allowances: Allowances, file: TokenFile, name: str, limits: dict[str, float]
) -> Allowance:
    token, _ = file.issue(name, [Scope.PRODUCE], limits=limits)
    made = allowances.of_token(token)
    assert made is not None
    return made


def refusal(allowance: Allowance) -> object:
    """Whose limit refuses a key."""
    with pytest.raises(ApiError) as caught:
        allowance.take_key()
    error = caught.value
    assert (error.status, error.code) == (429, "over_limit")
    assert error.detail["limit"] == "dedupe_entries"
    return error.detail["of"]


def test_keys_of_all_tokens_and_shards_count_for_the_daemon(
    segment: Segment, tmp_path: Path
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    here, there = (Allowances(segment, shard, {"dedupe_entries": A_MINUTE}) for shard in (0, 1))
    with_own = of_token(here, file, "own", {"dedupe_entries": 1000})
    with_others = of_token(there, file, "others", {"requests": 1000})
    without = of_token(there, file, "none", {})
    with_own.take_key()
    assert {refusal(each) for each in (with_own, with_others, without)} == {"daemon"}
    assert there.of_all is without


def test_a_key_that_the_daemon_refuses_is_not_taken_from_the_token(
    segment: Segment, tmp_path: Path
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    allowances = Allowances(segment, 0, {"dedupe_entries": A_MINUTE})
    one = of_token(allowances, file, "one", {"dedupe_entries": A_MINUTE})
    other = of_token(allowances, file, "other", {"requests": 1000})
    other.take_key()
    assert refusal(one) == "daemon"
    other.give_key_back()
    one.take_key()
    assert refusal(one) == "token"
    one.give_key_back()
    other.take_key()


class _Connection:
    allowance: Allowance | None = None


def test_what_is_charged_is_owed_by_all_shards_until_it_is_paid(
    segment: Segment, tmp_path: Path
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    token, _ = file.issue("one", [Scope.PRODUCE], limits={"bytes_in": 100, "requests": 1000})
    here, there = (Allowances(segment, shard, {}).of_token(token) for shard in (0, 1))
    assert here is not None and there is not None
    first, second = _Connection(), _Connection()
    now_ns = [monotonic_ns()]
    for allowance in (here, there):
        for each in (*allowance._bytes_in, *allowance._requests):
            each.rate._now_ns = lambda: now_ns[0]
    here.charge(first, 90)
    assert here.debt_ns() == there.debt_ns() == 0
    there.charge(second, 260)
    assert 2_400_000_000 <= here.debt_ns() <= 2_600_000_000
    assert there.debt_ns() == here.debt_ns()
    now_ns[0] += 2_600_000_000
    assert here.debt_ns() == there.debt_ns() == 0
