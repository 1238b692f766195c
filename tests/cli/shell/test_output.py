"""Units, tables and progress bars."""

from __future__ import annotations

import pytest

from commands.shell.output import bytes_text, count_text, duration_text, table


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (None, "-"), (0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1536, "1.5 KiB"),
        (100 << 10, "100 KiB"), (1024 * 1024 - 1, "1.0 MiB"), (64 << 20, "64.0 MiB"),
        (5 << 40, "5.0 TiB"),
    ],
)  # fmt: skip
def test_bytes_in_binary_units(count: int | None, text: str) -> None:
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        (None, "-"), (0, "0 ms"), (0.5, "0.5 ms"), (9.999, "10 ms"), (999, "999 ms"),
        (1_000, "1.0 s"), (59_900, "59.9 s"), (61_000, "1 min 1 s"), (3_600_000, "1 h 0 min"),
        (90_000_000, "1 d 1 h"),
    ],
)  # fmt: skip
def test_durations_in_two_units_at_most(milliseconds: float | None, text: str) -> None:
    assert duration_text(milliseconds) == text


def test_counts_in_groups_of_three() -> None:
    assert (count_text(1234567), count_text(0), count_text(None)) == ("1,234,567", "0", "-")


def test_a_table_aligns_numbers_to_the_right_and_texts_to_the_left() -> None:
    rows = [("orders", 12, None), ("a", 1234, "x")]
    assert table(("topic", "records", "note"), rows) == (
        "topic   records  note\n"  #
        "orders       12  -\n"
        "a          1234  x"
    )


def test_a_table_without_rows_is_its_head() -> None:
    assert table(("a", "b"), []) == "a  b"
