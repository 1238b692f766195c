"""Idempotency keys: limits of a token and of the daemon, taken together or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from daemon.access.allowance import Allowance, Allowances
from daemon.access.token_file import Scope, TokenFile
from daemon.schemas.errors import ApiError
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
