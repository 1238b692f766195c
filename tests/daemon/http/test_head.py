"""Heads: what is refused, because two parsers might read it differently, and what is cached."""

from __future__ import annotations

import pytest

from daemon.http.head import (
    HeadCache,
    check_framing,
    joined_fields,
    parse_head,
    unreadable_head,
)
from daemon.http.limits import HttpLimits
from daemon.schemas.decoding import REPEATED
from daemon.schemas.errors import ApiError
from tests.daemon.http.front import get, post, serving

LIMITS = HttpLimits()


def head(*lines: str, start: str = "POST /echo HTTP/1.1", host: str = "Host: a") -> bytes:
    return "\r\n".join([start, host, *lines, "", ""]).encode("latin-1")


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("/a" * 33, "the path has 33 segments, the limit is 32"),
        ("/a?" + "&".join(f"p{n}" for n in range(101)), "101 parameters, the limit is 100"),
    ],
)
def test_a_target_of_many_parts_is_refused_before_they_are_decoded(
    target: str, message: str
) -> None:
    with pytest.raises(ApiError, match=message):
        parse_head(get(target), LIMITS)
    parse_head(get("/a" * 32 + "?" + "&".join(f"p{n}" for n in range(100))), LIMITS)


SMUGGLING = {
    "two equal lengths": head("Content-Length: 5", "Content-Length: 5"),
    "two different lengths": head("Content-Length: 5", "Content-Length: 6"),
    "a list of lengths": head("Content-Length: 5, 5"),
    "a signed length": head("Content-Length: +5"),
    "a negative length": head("Content-Length: -5"),
    "a hexadecimal length": head("Content-Length: 0x5"),
    "a length with an underscore": head("Content-Length: 1_0"),
    "an empty length": head("Content-Length: "),
    "an overlong length": head("Content-Length: 9999999999999999999"),
    "length and chunked": head("Content-Length: 5", "Transfer-Encoding: chunked"),
    "chunked and length": head("Transfer-Encoding: chunked", "Content-Length: 5"),
    "a coding below chunked": head("Transfer-Encoding: gzip, chunked"),
    "a coding above chunked": head("Transfer-Encoding: chunked, gzip"),
    "an unknown coding": head("Transfer-Encoding: xchunked"),
    "chunked twice": head("Transfer-Encoding: chunked", "Transfer-Encoding: chunked"),
    "chunked after a vertical tab": head("Transfer-Encoding: \x0bchunked"),
    "chunked in HTTP/1.0": head("Transfer-Encoding: chunked", start="POST /echo HTTP/1.0"),
    "a space before the colon": head("Content-Length : 5"),
    "a space in a name": head("Content Length: 5"),
    "a folded line": head("X: a", " Content-Length: 5"),
    "a line without a colon": head("Content-Length"),
    "an empty name": head(": 5"),
    "a bare LF between lines": head("X: a\nContent-Length: 5"),
    "a bare CR in a value": head("X: a\rContent-Length: 5"),
    "a NUL in a value": head("X: a\x00b"),
    "no Host": head(host="X: y"),
    "two Hosts": head("Host: b"),
    "a Host with a space": head(host="Host: a b"),
    "a Host with a path": head(host="Host: a/b"),
    "two spaces in the request line": head(start="POST  /echo HTTP/1.1"),
    "a space after the version": head(start="POST /echo HTTP/1.1 "),
    "a tab in the request line": head(start="POST\t/echo HTTP/1.1"),
    "a bare LF after the request line": b"POST /echo HTTP/1.1\nHost: a\r\n\r\n",
    "HTTP/0.9": b"GET /echo\r\n\r\n",
    "HTTP/2": head(start="GET /echo HTTP/2.0"),
    "HTTP/1.2": head(start="GET /echo HTTP/1.2"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\n",
    "RTSP": head(start="GET /echo RTSP/1.0"),
    "an unknown method": head(start="FROB /echo HTTP/1.1"),
    "a method in lower case": head(start="post /echo HTTP/1.1"),
    "CONNECT": head(start="CONNECT a:80 HTTP/1.1"),
    "a relative target": head(start="GET echo HTTP/1.1"),
    "a fragment": head(start="GET /echo#a HTTP/1.1"),
    "a raw byte in the target": head(start="GET /\xe9 HTTP/1.1"),
    "a cut percent sign": head(start="GET /echo%2 HTTP/1.1"),
    "a wrong percent sign": head(start="GET /echo%zz HTTP/1.1"),
    "an encoded NUL": head(start="GET /echo%00 HTTP/1.1"),
    "an encoded line break": head(start="GET /echo%0d%0a HTTP/1.1"),
    "a path that is not UTF-8": head(start="GET /echo%ff HTTP/1.1"),
    "a query that is not UTF-8": head(start="GET /echo?a=%c3%28 HTTP/1.1"),
    "a query parameter twice": head(start="GET /echo?a=1&a=2 HTTP/1.1"),
    "two content types": head("Content-Type: a/b", "Content-Type: c/d"),
    "TLS": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
    "three empty lines": b"\r\n\r\n\r\n\r\n\r\n\r\n",
    "binary": bytes(range(128, 256)),
}


def test_whatever_could_be_read_two_ways_is_400_and_the_end_and_disturbs_nobody() -> None:
    with serving() as front, front.client() as neighbor:
        for name, raw in SMUGGLING.items():
            with front.client() as client:
                client.send(post("/echo", b"before") + raw + get("/echo?smuggled"))
                assert client.answer().json["body"] == "before", name
                answer = client.answer()
                assert (answer.status, answer.code) == (400, "bad_request"), name
                assert answer.headers["connection"] == "close", name
                assert len(answer.json["error"]["message"]) > 20, name
                assert client.ended(), name
            neighbor.send(get("/echo"))
            assert neighbor.answer().status == 200
        assert {path for path, _ in front.script.handled} == {"/echo"}
        assert {body for _, body in front.script.handled} == {b"before", b""}
        assert len(front.script.handled) == 2 * len(SMUGGLING)


@pytest.mark.parametrize("name", [name for name, raw in SMUGGLING.items() if raw[:1].isalpha()])
def test_the_head_itself_is_refused_and_not_only_what_follows(name: str) -> None:
    with pytest.raises(ApiError) as caught:
        parse_head(SMUGGLING[name], LIMITS)
    assert (caught.value.status, caught.value.close) == (400, True)


@pytest.mark.parametrize("name", ["content-length", "transfer-encoding", "host"])
def test_a_field_that_frames_a_request_is_refused_twice_by_us_too(name: str) -> None:
    fields = [(name.title().encode(), b"5"), (name.encode(), b"5")]
    with pytest.raises(ApiError) as caught:
        joined_fields(fields)
    assert (caught.value.status, caught.value.close) == (400, True)
    assert caught.value.detail == {"header": name}


def test_a_length_beside_a_coding_is_refused_by_us_too() -> None:
    headers = {"host": "a", "content-length": "5", "transfer-encoding": "chunked"}
    with pytest.raises(ApiError) as caught:
        check_framing(headers, http_1_1=True)
    assert (caught.value.status, caught.value.close) == (400, True)


def test_a_head_over_its_bytes_is_431_whether_whole_or_not() -> None:
    with serving() as front:
        for raw in (
            get("/echo", *[f"X-{n}: {'y' * 1000}" for n in range(40)]),
            b"GET /echo HTTP/1.1\r\nX: " + b"y" * 40_000,
        ):
            with front.client() as client:
                client.send(raw)
                answer = client.answer()
                assert (answer.status, answer.code) == (431, "head_too_large")
                assert answer.json["error"]["detail"]["limit_bytes"] == 32 * 1024
                assert client.ended()


def test_a_head_with_too_many_fields_is_431_and_one_with_as_many_is_not() -> None:
    parse_head(head(*["X: y"] * 99), LIMITS)
    with pytest.raises(ApiError) as caught:
        parse_head(head(*["X: y"] * 100), LIMITS)
    assert (caught.value.status, caught.value.close) == (431, True)


def test_an_overlong_target_is_414() -> None:
    parse_head(head(start=f"GET /{'a' * 8191} HTTP/1.1"), LIMITS)
    with pytest.raises(ApiError) as caught:
        parse_head(head(start=f"GET /{'a' * 8192} HTTP/1.1"), LIMITS)
    assert (caught.value.status, caught.value.close) == (414, True)


def test_repeated_fields_are_joined_in_order() -> None:
    parsed = parse_head(head("Accept: a", "X: 1", "accept: b"), LIMITS)
    assert (parsed.headers["accept"], parsed.headers["x"]) == ("a, b", "1")


@pytest.mark.parametrize(
    ("lines", "start", "keep_alive"),
    [
        ((), "GET / HTTP/1.1", True),
        (("Connection: close",), "GET / HTTP/1.1", False),
        (("Connection: Keep-Alive, Close",), "GET / HTTP/1.1", False),
        (("Connection: foo", "Connection: close"), "GET / HTTP/1.1", False),
        ((), "GET / HTTP/1.0", False),
        (("Connection: Keep-Alive",), "GET / HTTP/1.0", True),
    ],
)
def test_who_keeps_the_connection(lines: tuple[str, ...], start: str, keep_alive: bool) -> None:
    assert parse_head(head(*lines, start=start), LIMITS).keep_alive is keep_alive


def test_the_cache_is_bounded_in_count_bytes_and_the_size_of_an_entry() -> None:
    cache = HeadCache(count_max=3, bytes_max=100, entry_bytes_max=50)
    parsed = unreadable_head()
    for n in range(3):
        cache.add(b"%d" % n, parsed)
    assert len(cache.entries) == 3
    cache.add(b"3", parsed)
    assert list(cache.entries) == [b"3"]
    cache.add(b"x" * 50, parsed)
    cache.add(b"y" * 50, parsed)
    assert list(cache.entries) == [b"y" * 50]
    cache.add(b"z" * 51, parsed)
    assert list(cache.entries) == [b"y" * 50]


def test_a_parameter_that_may_be_repeated_has_all_its_values_in_their_order() -> None:
    parsed = parse_head(head(start="GET /c?filter=b*&max=1&filter=a%2Cb HTTP/1.1"), LIMITS)
    assert parsed.query == {"filter": f"b*{REPEATED}a,b", "max": "1"}


def test_a_value_that_contains_what_joins_repeated_ones_is_refused() -> None:
    with pytest.raises(ApiError, match="control character"):
        parse_head(head(start="GET /c?filter=a%0Ab HTTP/1.1"), LIMITS)
