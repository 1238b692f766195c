"""Bodies of requests other than produce: whatever the bytes, the answer is a refusal by name."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from daemon.api.errors import ApiError
from daemon.api.plan_routes import read_plan
from daemon.api.routes import read_diff
from daemon.api.topic_routes import read_trim
from daemon.api.topic_settings import read_config
from daemon.http.head import parse_head
from daemon.http.limits import HttpLimits
from daemon.http.request import Request

Read = Callable[[Request], Any]
READERS: dict[str, Read] = {
    "diff": read_diff, "trim": read_trim, "settings": read_config, "plan": read_plan
}  # fmt: skip


def asked(body: bytes, content_type: str = "application/json") -> Request:
    raw = f"POST / HTTP/1.1\r\nHost: test\r\nContent-Type: {content_type}\r\n\r\n".encode()
    head = parse_head(raw, HttpLimits())
    return Request(head, body, 0, connection=None)  # type: ignore[arg-type]  # nobody is answered


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_members_name_that_is_not_utf8_is_refused_with_its_place(read: Read) -> None:
    with pytest.raises(ApiError) as caught:
        read(asked(b'{"from_\x97eq": 0}'))
    assert (caught.value.status, caught.value.code) == (400, "invalid")
    assert caught.value.detail == {"byte": 7, "line": 1}
    assert "not UTF-8" in caught.value.message


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
@given(body=st.binary(max_size=12) | st.binary(max_size=8).map(lambda b: b'{"%s":0}' % b))
@example(b"[" * 100_000)
@example(b'{"a":' * 100_000)
@example(b'{"\\ud800": 1}')
def test_no_bytes_of_a_body_make_a_reader_fail(read: Read, body: bytes) -> None:
    with suppress(ApiError):
        read(asked(body))


@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_a_body_of_another_type_is_refused_with_the_type_that_is_read(read: Read) -> None:
    with pytest.raises(ApiError) as caught:
        read(asked(b"{}", "text/plain"))
    assert caught.value.status == 415
    assert "application/json" in caught.value.message
