"""Limits as they are written, and as they are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.access.token_file import Scope, TokenFile, TokenFileError, read_tokens
from daemon.config.limits import BY_NAME, limit_text, read_limits


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("requests=1000/s", {"requests": 1000}),
        ("settings=30/min", {"settings": 0.5}),
        ("requests=1/h, bytes_in=10MiB/s", {"requests": 1 / 3600, "bytes_in": 10 << 20}),
        ({"streams": 5, "bytes_out": "1KiB/s"}, {"streams": 5, "bytes_out": 1024}),
        ("", {}),
        ((), {}),
    ],
)
def test_limits_are_read_from_text_and_tables(written: object, read: dict[str, float]) -> None:
    assert read_limits(written) == pytest.approx(read)
    again = {name: limit_text(name, number) for name, number in read.items()}
    assert read_limits(again) == pytest.approx(read)


def test_a_limit_is_shown_as_it_is_written() -> None:
    for text in ("requests=1000/s", "settings=30/min", "bytes_in=10MiB/s", "topics=7"):
        [(name, number)] = read_limits(text).items()
        assert f"{name}={limit_text(name, number)}" == text
    assert limit_text("requests", 0.5) == "30/min"


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("requests=1000", "a rate like 100/s or 10/min for requests"),
        ("streams=3/s", "a number for streams"),
        ("requests=5/day", "a rate like 100/s"),
        ("requests=0/s", "above 0"),
        ("requests=-1/s", "above 0"),
        ("requests=nan/s", "a finite number for requests"),
        ("bytes_in=1MB/s", "a size"),
        ("speed=1/s", "must have the limits requests, bytes_in"),
        ("requests", "text like requests=1000/s"),
        (7, "must be a table"),
    ],
)
def test_what_is_no_limit_is_refused_by_name(written: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        read_limits(written)


def test_each_token_with_limits_has_a_slot_of_its_own(tmp_path: Path) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    for name in ("a", "b", "c"):
        file.issue(name, [Scope.READ], limits={"requests": 1.5})
    file.issue("free", [Scope.READ])
    file.revoke("b")
    file.issue("d", [Scope.READ], limits={"streams": 3})
    assert {token.name: token.slot for token in file.tokens()} == {
        "a": 1, "c": 3, "free": 0, "d": 6,
    }  # fmt: skip
    assert {token.name: token.limits for token in file.tokens()}["d"] == {"streams": 3}


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('"slot": 1', '"slot": 2', "a slot of its own"),
        ('"slot": 1', '"slot": 0', "a slot of its own"),
        ('"slot": 1', '"slot": 99999', "a slot of its own"),
        ('"requests": 1.5', '"requests": 0', "above 0"),
        ('"requests": 1.5', '"speed": 1', "is not a limit"),
    ],
)
def test_a_file_with_limits_that_cannot_be_kept_is_refused(
    tmp_path: Path, old: str, new: str, says: str
) -> None:
    file = TokenFile(tmp_path / "tokens.json")
    file.issue("a", [Scope.READ], limits={"requests": 1.5})
    file.issue("b", [Scope.READ], limits={"requests": 2})
    text = file.path.read_text()
    assert old in text
    file.path.write_text(text.replace(old, new, 1))
    with pytest.raises(TokenFileError, match=says):
        read_tokens(file.path)


def test_words_of_limits_are_given_once() -> None:
    for is_rate in (True, False):
        words = [
            limit.word
            for limit in BY_NAME.values()
            if limit.is_rate == is_rate and limit.word is not None
        ]
        assert len({*words}) == len(words)
