"""What cursors of sources are called."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from commands.importing.names import CursorNames
from daemon.schemas.names import check_cursor_name

names = st.text(st.characters(codec="utf-8"), max_size=1_024)


@given(names, names)
def test_an_object_has_a_name_that_the_daemon_takes_and_that_shows_what_it_is_of(
    bucket: str, key: str
) -> None:
    url = f"s3://{bucket}/{key}"
    found = CursorNames.of_object(7, f"s3\0{url}\0etag", url)
    for name in found:
        check_cursor_name(name)
    other = CursorNames.of_object(7, f"s3\0{url}\0other", url)
    assert other.cursor != found.cursor, "a replaced object is another source"


def test_an_object_is_found_in_the_name_of_its_cursor() -> None:
    name = CursorNames.of_object(7, "id", "s3://exports/2026/01/a b.gz").cursor
    assert name.endswith(":exports:2026:01:a-b.gz")
