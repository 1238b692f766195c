"""How long a key, a tag and a node may be, in each format."""

from __future__ import annotations

import msgspec
import pytest

from tests.daemon.intake.formats.sent import BYTES, JSON, MSGPACK, NDJSON, parsed, refused

LONG = "\U0001f511" * 1_025


@pytest.mark.parametrize("name", ["key", "tag", "node"])
def test_a_key_tag_or_node_that_no_pattern_could_name_is_refused(name: str) -> None:
    """Matching and hashing them take 0.1 us for each character, in the loop."""
    for text, is_taken in ((LONG[1:], True), (LONG, False)):
        record = {"data": 1, name: text}
        body = msgspec.json.encode({"records": [{"data": 0}, record]})
        packed = msgspec.msgpack.encode({"records": [{"data": 0}, record]})
        for content_type, each in ((JSON, body), (MSGPACK, packed)):
            if is_taken:
                assert parsed(content_type, each).rows[1][-1] == text
                continue
            error = refused(content_type, each)
            assert (error.status, error.detail["record"]) == (400, 1)
            assert "1024 characters" in error.message
        query = {name: text}
        if is_taken:
            assert parsed(BYTES, b"1", **query).rows[0][-1] == text
        else:
            assert "1024 characters" in refused(BYTES, b"1", **query).message


@pytest.mark.parametrize("text", [f'"{LONG}"', "1" * 1_025], ids=["text", "number"])
def test_a_field_that_is_too_long_for_a_key_is_refused(text: str) -> None:
    for content_type, body, where in (
        (JSON, f'[{{"k": 1}}, {{"k": {text}}}]', {"record": 1}),
        (NDJSON, f'{{"k": 1}}\n{{"k": {text}}}\n', {"line": 2}),
    ):
        error = refused(content_type, body.encode(), key="k")
        assert error.status == 400 and error.detail.items() >= ({"limit": 1024} | where).items()
        assert "has 1025 characters, the limit is 1024" in error.message
