"""CloudEvents that cannot be records are refused with a reason; what is odd and right is taken."""

from __future__ import annotations

import json
from typing import Any

import pytest

from daemon.intake.formats.cloud_events import (
    BATCH,
    BATCH_MEMBERS_MAX,
    MEMBERS_MAX,
    STRUCTURED,
    Event,
    binary_event,
    json_events,
    row_of,
)
from daemon.intake.formats.limits import BodyLimits
from daemon.schemas.errors import ApiError
from daemon.schemas.hooks import HookQuery

LIMITS = BodyLimits(records_max=3)
GOOD = {"specversion": "1.0", "id": "1", "source": "/s", "type": "t"}


def row_from(document: dict[str, Any] | bytes, query: HookQuery | None = None) -> Any:
    """The row of a structured event."""
    body = document if isinstance(document, bytes) else json.dumps(document).encode()
    (event,) = json_events(STRUCTURED, body, LIMITS)
    return row_of(event, {}, LIMITS, query or HookQuery())


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (b"", "not a CloudEvent"),
        (b"[]", "not a CloudEvent"),
        (b"{", "not a CloudEvent"),
        ({}, "specversion of the body must be 1.0"),
        ({**GOOD, "specversion": "0.3"}, "got '0.3'"),
        ({**GOOD, "id": ""}, "without the attribute id"),
        ({**GOOD, "source": None}, "without the attribute source"),
        ({**GOOD, "extension": []}, "strings, numbers or booleans"),
        ({**GOOD, "data": 1, "data_base64": "AA=="}, "both data and data_base64"),
        ({**GOOD, "data_base64": "A"}, "not base64"),
        ({**GOOD, "data_base64": 7}, "strings, numbers"),
        ({**GOOD, "time": "yesterday"}, "RFC 3339"),
        ({**GOOD, "time": "2026-01-31T12:00:00"}, "with a zone"),
        ({**GOOD, "time": "1969-12-31T23:59:59Z"}, "ts of the body"),
        ({**GOOD, "type": "t" * 1_025}, "limit is 1024"),
        ({**GOOD, "type": "headgate.record", "meta": "[]"}, "must be a JSON object"),
        (b'{"specversion":"1.0","id":"1","source":"/s","type":"\xff"}', "can't decode"),
        (json.dumps(GOOD)[:-1].encode() + b',"data":1,"data":2}', "has the field data twice"),
        (json.dumps(GOOD)[:-1].encode() + b',"data":' + b"[" * 600 + b"]" * 600 + b"}", "nested"),
    ],
    ids=range(19),
)
def test_a_document_that_is_no_event_is_refused_with_a_reason(document: Any, says: str) -> None:
    with pytest.raises(ApiError) as error:
        row_from(document)
    assert error.value.status == 400 and says in error.value.message, error.value.message


def test_a_batch_names_its_event_and_has_limits() -> None:
    for body, says in (
        (b"[]", "no records"),
        (json.dumps([GOOD] * 4).encode(), "more than 3 records"),
        (json.dumps([GOOD, 1]).encode(), "record 1 is not a CloudEvent"),
    ):
        with pytest.raises(ApiError, match=says):
            json_events(BATCH, body, LIMITS)


def test_attributes_beyond_their_limits_are_refused_before_they_are_read() -> None:
    full = {**GOOD, **{f"a{number}": None for number in range(MEMBERS_MAX - len(GOOD))}}
    assert row_from(full)
    with pytest.raises(ApiError, match="has 1001 attributes, the limit of an event is 1000"):
        row_from({**full, "unread": []})
    limits = BodyLimits()
    count = BATCH_MEMBERS_MAX // MEMBERS_MAX
    text = json.dumps(full)
    assert len(json_events(BATCH, f"[{','.join([text] * count)}]".encode(), limits)) == count
    text += ',{"unread":[]}'
    with pytest.raises(ApiError, match="send smaller batches") as error:
        json_events(
            BATCH, f"[{','.join([json.dumps(full)] * (count - 1) + [text])}]".encode(), limits
        )
    assert error.value.status == 413


def test_no_data_is_null_and_a_null_attribute_is_absent() -> None:
    assert row_from({**GOOD, "subject": None}) == (
        "null",
        None,
        None,
        "t",
        None,
        json.dumps(GOOD).replace(" ", ""),
    )
    assert binary_event({f"ce-{name}": value for name, value in GOOD.items()}, b"").data == "null"


@pytest.mark.parametrize("data", [{"data": ""}, {"data_base64": ""}])
def test_empty_data_is_not_null(data: dict[str, str]) -> None:
    (event,) = json_events(
        STRUCTURED, json.dumps({**GOOD, "datacontenttype": "text/plain", **data}).encode(), LIMITS
    )
    assert event.data == b""
    headers = {f"ce-{name}": value for name, value in GOOD.items()}
    assert binary_event(headers, b"").data == "null"
    assert binary_event({**headers, "content-type": "text/plain"}, b"").data == b""


def test_text_that_says_it_is_json_stays_json() -> None:
    assert row_from({**GOOD, "data": "a"})[0] == '"a"'
    assert row_from({**GOOD, "data": "a", "datacontenttype": "text/plain"})[0] == b"a"
    assert row_from({**GOOD, "data": {"a": 1}, "datacontenttype": "text/plain"})[0] == '{"a": 1}'


def test_the_url_goes_before_what_the_event_says() -> None:
    query = HookQuery(key="n", tag="mine", node="here")
    row = row_from({**GOOD, "data": {"n": 7}, "partitionkey": "theirs"}, query)
    assert row[2:5] == ("7", "mine", "here")
    binary = Event({**GOOD}, b"\x00")
    assert row_of(binary, {}, LIMITS, query)[2:5] == (None, "mine", "here")


def test_a_header_of_an_event_is_utf8_in_percents() -> None:
    headers = {**{f"ce-{name}": value for name, value in GOOD.items()}, "ce-subject": "%C3%A9 %25"}
    assert binary_event(headers, b"1").attributes["subject"] == "é %"
    with pytest.raises(ApiError, match="ce-subject is not UTF-8"):
        binary_event({**headers, "ce-subject": "%FF"}, b"1")
