"""wrk's script contains what is asked of it, and its output is parsed into figures."""

from __future__ import annotations

import pytest

from bench.load import GeneratorError, Pace, Request
from bench.wrk import parse, script

OUTPUT = """Running 4s test @ http://127.0.0.1:7440/v0/topics/bench
  1 threads and 1024 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency    18.31ms    6.10ms 120.00ms   92.00%
  80200 requests in 4.01s, 14.20MB read
  Socket errors: connect 0, read 3, write 1, timeout 2
  Non-2xx or 3xx responses: 200
bench-result {"requests":80200,"duration_us":4010000,"status":200,"connect":0,"read":3,"write":1,\
"timeout":2,"mean_us":18310.5,"p50_us":17500,"p99_us":41000}
"""
REQUEST = Request("/v0/topics/bench", (("Content-Type", "application/x-ndjson"),), b"{}\n")


def test_what_was_answered_2xx_counts_as_acknowledged_and_nothing_else() -> None:
    load = parse(OUTPUT, 1.5)
    assert load.requests == 80_200
    assert load.not_2xx == 200
    assert load.acked == 80_000
    assert load.acked_per_s == pytest.approx(80_000 / 4.01)


def test_times_are_milliseconds_and_seconds() -> None:
    load = parse(OUTPUT, 1.5)
    assert (load.seconds, load.p50_ms, load.p99_ms) == (4.01, 17.5, 41.0)
    assert load.mean_ms == pytest.approx(18.3105)
    assert load.generator_cpu_s == 1.5


def test_socket_errors_of_all_kinds_are_added_up() -> None:
    assert parse(OUTPUT, 0.0).socket_errors == 6


def test_output_without_a_result_is_an_error_that_shows_it() -> None:
    with pytest.raises(GeneratorError, match="unable to connect"):
        parse("unable to connect to 127.0.0.1:1 Connection refused\n", 0.0)


def test_a_result_cut_short_is_an_error() -> None:
    with pytest.raises(GeneratorError, match="does not decode"):
        parse('bench-result {"requests":80200,"dura\n', 0.0)


def test_a_run_of_no_time_is_an_error() -> None:
    with pytest.raises(GeneratorError, match="0 us"):
        parse(OUTPUT.replace("4010000", "0"), 0.0)


def test_without_a_pause_wrk_calls_no_function_per_request() -> None:
    assert "function delay" not in script(REQUEST, "body", Pace(1, 1))


def test_a_pause_is_spread_around_its_mean() -> None:
    made = script(REQUEST, "body", Pace(1, 1, pause_ms=20, pause_spread=0.5))
    assert "math.floor(10.0000 + math.random() * 20.0000 + math.random())" in made


def test_quotes_and_backslashes_in_a_header_stay_text() -> None:
    odd = REQUEST._replace(headers=(("X-Odd", 'a"b\\c'),))
    assert 'wrk.headers["X-Odd"] = "a\\"b\\\\c"' in script(odd, "body", Pace(1, 1))


def test_a_request_on_the_wire_declares_its_length() -> None:
    head, body = REQUEST.encoded("127.0.0.1:1").split(b"\r\n\r\n")
    assert head.splitlines()[0] == b"POST /v0/topics/bench HTTP/1.1"
    assert b"Content-Length: 3" in head
    assert body == b"{}\n"
