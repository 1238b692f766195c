"""Requests over real sockets: bodies, order, refusals, and connections that stay usable."""

from __future__ import annotations

import contextlib
import logging

import pytest

from daemon.http.limits import HttpLimits
from tests.daemon.http.front import chunked, get, post, serving


class TestRequests:
    def test_a_request_comes_to_the_application_as_it_was_sent(self) -> None:
        with serving() as front, front.client() as client:
            client.send(
                post("/echo/a%2Fb/%C3%A9?x=1&y=a+b%2B&z", b"hello", "Content-Type: Text/Plain; q=1")
            )
            seen = client.answer().json
        assert seen["method"] == "POST"
        assert seen["path"] == "/echo/a/b/é"
        assert seen["segments"] == ["echo", "a/b", "é"]
        assert seen["query"] == {"x": "1", "y": "a b+", "z": ""}
        assert seen["content_type"] == "text/plain"
        assert seen["body"] == "hello"
        assert seen["headers"]["host"] == "test"

    def test_a_connection_serves_many_requests_and_parses_equal_heads_once(self) -> None:
        with serving() as front, front.client() as client:
            for n in range(50):
                client.send(post("/echo", b"%02d" % n))
                assert client.answer().json["body"] == f"{n:02}"
            assert front.script.routed == 1

    @pytest.mark.parametrize("size", [0, 1, 199, 65_536, 300_000, 5_000_000])
    def test_bodies_of_every_size_arrive_whole(self, size: int) -> None:
        body = bytes(n * 7 % 251 for n in range(1000)) * (size // 1000) + b"z" * (size % 1000)
        with serving() as front, front.client() as client:
            chunks = [each for each in (body[:100], body[100:]) if each]
            for request in (post("/free", body), chunked("/free", *chunks)):
                client.send(request)
                assert client.answer().status == 200
            bodies = [seen for _, seen in front.script.handled]
        assert bodies == [body, body]

    def test_requests_sent_byte_by_byte_are_understood(self) -> None:
        stream = post("/echo", b"abc") + chunked("/echo", b"de", b"f") + get("/echo")
        with serving() as front, front.client() as client:
            for n in range(len(stream)):
                client.send(stream[n : n + 1])
            assert [client.answer().json["body"] for _ in range(3)] == ["abc", "def", ""]

    def test_a_head_request_gets_the_length_and_no_body(self) -> None:
        with serving() as front, front.client() as client:
            client.send(b"HEAD /echo HTTP/1.1\r\nHost: a\r\n\r\n" + get("/echo"))
            assert int(client.answer(to_head=True).headers["content-length"]) > 0
            assert client.answer().json["method"] == "GET"

    def test_no_content_has_no_length(self) -> None:
        with serving() as front, front.client() as client:
            client.send(get("/empty"))
            answer = client.answer()
        assert (answer.status, answer.headers) == (204, {})

    def test_an_offer_to_upgrade_is_ignored(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/echo", b"x", "Connection: Upgrade", "Upgrade: h2c") + get("/echo"))
            assert client.answer().json["body"] == "x"
            assert client.answer().status == 200

    def test_the_absolute_form_and_an_empty_line_before_a_request_are_taken(self) -> None:
        with serving() as front, front.client() as client:
            client.send(b"\r\n" + get("http://test/echo?a=1") + b"\r\n" + get("http://test"))
            assert client.answer().json["path"] == "/echo"
            assert client.answer().json["path"] == "/"


class TestOrder:
    def test_a_thousand_pipelined_requests_are_answered_in_order(self) -> None:
        with serving() as front, front.client() as client:
            client.send(b"".join(post("/echo", b"%d" % n) for n in range(1000)))
            assert [client.answer().json["body"] for _ in range(1000)] == [
                str(n) for n in range(1000)
            ]

    def test_answers_given_in_any_order_leave_in_the_order_of_requests(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/later/0") + post("/echo", b"1") + post("/later/2") + get("/missing"))
            front.script.wait_for_later(2)
            first, third = front.script.later
            front.call(lambda: third.respond_ok_json(b'"third"'))
            front.call(lambda: first.respond(201, b'"first"'))
            answers = [client.answer() for _ in range(4)]
        assert [a.status for a in answers] == [201, 200, 200, 404]
        assert [a.body for a in answers[::2]] == [b'"first"', b'"third"']

    def test_reading_pauses_at_the_limit_of_outstanding_requests(self) -> None:
        with serving(requests_outstanding_max=4) as front, front.client() as client:
            script = front.script
            client.send(b"".join(post(f"/later/{n}") for n in range(20)))
            for n in range(20):
                script.wait_for_later(n + 1)
                assert len(script.later) - n <= 4
                front.answer(n, b"%d" % n)
            assert [client.answer().body for _ in range(20)] == [b"%d" % n for n in range(20)]

    def test_a_client_that_takes_no_answers_is_not_read_from(self) -> None:
        with serving(write_buffer_high_bytes=65_536) as front, front.client() as client:
            script = front.script
            # More than the sockets' buffers hold, so that answers pile up in the server.
            client.send(get(f"/big?bytes={32 << 20}") + get("/echo"))
            script.wait(lambda: script.handled)
            client.send(get("/echo"))
            assert len(client.answer().body) == 32 << 20
            assert client.answer().status == 200
            assert client.answer().status == 200

    def test_answers_that_nobody_takes_are_limited_and_others_get_theirs(self) -> None:
        size = 32 << 20
        with contextlib.ExitStack() as stack:
            front = stack.enter_context(serving(answers_unsent_bytes_max=3 * size))
            clients = [stack.enter_context(front.client()) for _ in range(6)]
            unsent = front.server.unsent
            sent = []
            for client in clients:
                sent.append(client)
                client.send(get(f"/big?bytes={size}"))
                front.script.wait(lambda: len(front.script.handled) == len(sent))
                front.call(unsent.check_invariants)
                assert front.call(lambda: unsent.bytes) <= 3 * size
            # The head of an answer counts too, so there is room for two.
            assert front.call(lambda: len(unsent)) == 2
            assert len(clients[-1].answer().body) == size
            with pytest.raises((ConnectionError, EOFError, AssertionError)):
                clients[0].answer()
            with front.client() as bystander:
                bystander.send(get("/echo"))
                assert bystander.answer().status == 200
            clients[-1].send(get("/echo"))  # is read when the client has taken the answer
            assert clients[-1].answer().status == 200
            assert front.call(lambda: len(unsent)) == 1

    def test_answers_that_wait_for_an_earlier_one_count(self) -> None:
        with serving(answers_unsent_bytes_max=1_000) as front, front.client() as client:
            client.send(post("/later/0") + post("/later/1") + post("/later/2"))
            front.script.wait_for_later(3)
            unsent = front.server.unsent
            front.answer(2, b"x" * 600)
            assert front.call(lambda: unsent.bytes) == 600
            front.answer(1, b"y" * 600)  # with the first, more than may wait
            assert front.call(lambda: (unsent.bytes, len(unsent))) == (0, 0)
            with pytest.raises((ConnectionError, EOFError, AssertionError)):
                client.answer()

    def test_an_answer_that_had_to_wait_and_is_taken_does_not_count_any_more(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/later/0") + post("/later/1"))
            front.script.wait_for_later(2)
            front.answer(1, b"second")
            front.answer(0, b"first")
            assert [client.answer().body for _ in range(2)] == [b"first", b"second"]
            assert front.call(lambda: front.server.unsent.bytes) == 0

    def test_a_second_answer_is_an_error_of_the_application(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/later"))
            front.script.wait_for_later(1)
            request = front.script.later[0]
            front.call(lambda: request.respond_ok_json(b"1"))
            with pytest.raises(RuntimeError, match="answered twice"):
                front.call(lambda: request.respond_ok_json(b"2"))
            assert client.answer().body == b"1"


class TestRefusals:
    def test_429_before_the_body_says_when_to_come_back_and_keeps_the_connection(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/full", b"x" * 100_000) + chunked("/full", b"y" * 9) + get("/echo"))
            for _ in range(2):
                answer = client.answer()
                assert (answer.status, answer.code) == (429, "throttled")
                assert answer.headers["retry-after"] == "2"
                assert "connection" not in answer.headers
            assert client.answer().status == 200
            assert front.script.admitted[0] == ("/full", 100_000)
            assert front.script.handled == [("/echo", b"")]

    def test_a_refusal_comes_before_the_body_is_sent(self) -> None:
        with serving() as front, front.client() as client:
            whole = post("/full", b"x" * 1000) + get("/echo")
            client.send(whole[:100])
            assert client.answer().status == 429
            client.send(whole[100:])
            assert client.answer().status == 200

    def test_a_large_refused_body_ends_the_connection_after_the_answer(self) -> None:
        with serving(discard_bytes_max=1000) as front, front.client() as client:
            client.send(post("/full", b"x" * 1_000_000))
            answer = client.answer()
            assert (answer.status, answer.headers["connection"]) == (429, "close")
            assert client.ended()

    def test_a_large_refused_chunked_body_ends_the_connection(self) -> None:
        with serving(discard_bytes_max=1000) as front, front.client() as client:
            client.send(chunked("/full", *[b"x" * 500] * 10))
            assert client.answer().status == 429
            assert client.ended()

    @pytest.mark.parametrize("path", ["/missing", "/only-get"])
    def test_a_path_or_method_that_is_not_there_costs_no_connection(self, path: str) -> None:
        with serving() as front, front.client() as client:
            client.send(post(path, b"body") + get("/echo"))
            answer = client.answer()
            assert answer.status == (404 if path == "/missing" else 405)
            assert answer.headers.get("allow") == (None if path == "/missing" else "GET, HEAD")
            assert client.answer().status == 200

    def test_a_body_over_the_limit_is_413_before_it_is_read_and_the_answer_arrives(self) -> None:
        with serving(body_bytes_max=1000) as front, front.client() as client:
            client.send(post("/echo", b"x" * 1000) + post("/echo", b"x" * 3_000_000))
            assert client.answer().status == 200
            answer = client.answer()
            assert (answer.status, answer.code) == (413, "too_large")
            assert answer.json["error"]["detail"] == {"limit_bytes": 1000}
            assert client.ended()
            assert [size for _, size in front.script.admitted] == [1000]

    def test_a_chunked_body_over_the_limit_is_413(self) -> None:
        with serving(body_bytes_max=1000) as front, front.client() as client:
            client.send(chunked("/echo", *[b"x" * 300] * 50))
            assert client.answer().status == 413
            assert client.ended()
            assert not front.script.handled
            assert not front.script.tokens

    def test_an_unsupported_encoding_is_415_and_names_the_supported(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/echo", b"x", "Content-Encoding: br"))
            answer = client.answer()
            assert (answer.status, answer.code) == (415, "unsupported_encoding")
            assert answer.json["error"]["detail"]["supported"] == ["gzip", "deflate", "zstd"]

    @pytest.mark.parametrize(
        ("said", "seen"),
        [("gzip", "gzip"), ("X-Gzip", "gzip"), ("zstd", "zstd"), ("identity", "")],
    )
    def test_supported_encodings_are_passed_on(self, said: str, seen: str) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/echo", b"x", f"Content-Encoding: {said}"))
            assert client.answer().json["content_encoding"] == seen

    @pytest.mark.parametrize("path", ["/fail", "/broken-admit", "/broken-route"])
    def test_a_bug_in_the_application_is_500_and_the_end_and_is_logged(
        self, path: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        with serving() as front, front.client() as client:
            with caplog.at_level(logging.ERROR):
                client.send(post(path, b"x") + get("/echo"))
                answer = client.answer()
                assert (answer.status, answer.code) == (500, "internal")
                assert client.ended()
            assert "ZeroDivisionError" in caplog.text
            assert ("/echo", b"") not in front.script.handled
            assert not front.script.tokens

    def test_a_bug_after_an_answer_ends_the_connection(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        with serving() as front, front.client() as client:
            with caplog.at_level(logging.ERROR):
                client.send(post("/answered-then-fail"))
                assert client.answer().status == 200
                assert client.ended()
            assert "ZeroDivisionError" in caplog.text

    def test_an_error_of_the_application_is_its_answer_and_the_connection_goes_on(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/refuse", b"x") + chunked("/refuse", b"x") + get("/echo"))
            assert [client.answer().status for _ in range(3)] == [400, 400, 200]
            front.script.wait(lambda: not front.script.tokens)

    def test_an_abandoned_request_ends_the_connection_without_an_answer(self) -> None:
        with serving() as front, front.client() as client:
            client.send(get("/echo") + post("/abandon") + get("/echo"))
            assert client.answer().status == 200
            assert client.ended()

    def test_requests_after_an_abandoned_one_learn_that_the_connection_is_gone(self) -> None:
        with serving() as front, front.client() as client:
            script = front.script
            client.send(post("/later/1") + post("/later/2"))
            script.wait_for_later(2)
            front.call(script.later[0].abandon)
            script.wait(lambda: script.closed == ["/later/2"])
            assert script.later[1].connection_closed
            front.answer(1, b"{}")
            assert client.ended()

    def test_one_connection_too_many_is_503_but_for_a_probe(self) -> None:
        with serving(connections_max=1) as front, front.client() as first:
            first.send(get("/later"))
            front.script.wait_for_later(1)
            with front.client() as second:
                second.send(get("/echo"))
                answer = second.answer()
                assert (answer.status, answer.code) == (503, "too_many_connections")
                assert second.ended()
            for _ in range(2):  # which no cache of heads answers otherwise
                with front.client() as probe:
                    probe.send(get("/probe"))
                    answer = probe.answer()
                    assert (answer.status, answer.headers["connection"]) == (200, "close")
                    assert probe.ended()
            front.answer(0, b"{}")
            assert first.answer().status == 200

    def test_a_crowd_beyond_the_limit_is_dropped_without_a_word(self) -> None:
        with (
            serving(connections_max=1, connections_told_max=1) as front,
            front.client() as first,
        ):
            first.send(get("/later"))
            front.script.wait_for_later(1)
            with front.client() as second:
                second.send(post("/echo", b"x")[:-1])  # its request is under way
                assert second.answer().status == 503
                with front.client() as third:  # takes the place of one that lingers
                    third.send(get("/echo"))
                    assert third.answer().status == 503
                    assert second.ended()


class TestExpectations:
    def test_100_continue_comes_after_admission_and_before_the_body(self) -> None:
        with serving() as front, front.client() as client:
            whole = post("/echo", b"abc", "Expect: 100-continue")
            client.send(whole[:-3])
            assert client.answer().status == 100
            assert front.script.admitted == [("/echo", 3)]
            client.send(whole[-3:] + get("/echo"))
            assert client.answer().json["body"] == "abc"
            assert client.answer().status == 200

    def test_100_continue_waits_for_the_answers_before_it(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/later"))
            front.script.wait_for_later(1)
            client.send(post("/echo", b"abc", "Expect: 100-continue")[:-3])
            front.script.wait(lambda: len(front.script.admitted) == 2)
            front.answer(0, b"1")
            assert client.answer().body == b"1"
            assert client.answer().status == 100
            client.send(b"abc")
            assert client.answer().json["body"] == "abc"

    def test_a_body_that_is_there_already_gets_no_100(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/echo", b"abc", "Expect: 100-continue"))
            assert client.answer().status == 200

    def test_a_refused_expectation_ends_the_connection(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/full", b"abc", "Expect: 100-continue")[:-3])
            answer = client.answer()
            assert (answer.status, answer.headers["connection"]) == (429, "close")
            assert client.ended()

    def test_another_expectation_is_417(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/echo", b"abc", "Expect: 200-ok"))
            assert client.answer().status == 417
            assert client.ended()


class TestEnds:
    def test_connection_close_is_honored_and_nothing_after_it_is_read(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/echo", b"1", "Connection: close") + post("/echo", b"2"))
            answer = client.answer()
            assert (answer.json["body"], answer.headers["connection"]) == ("1", "close")
            assert client.ended()
            assert front.script.handled == [("/echo", b"1")]

    def test_nothing_is_read_after_connection_close_while_its_answer_is_due(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/later", b"1", "Connection: close") + post("/echo", b"2"))
            front.script.wait_for_later(1)
            front.answer(0, b"1")
            assert client.answer().body == b"1"
            assert client.ended()
            assert front.script.handled == [("/later", b"1")]

    def test_http_1_0_is_closed_unless_it_asks_for_more(self) -> None:
        with serving() as front, front.client() as client:
            client.send(b"GET /echo HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
            assert client.answer().headers["connection"] == "keep-alive"
            client.send(b"GET /echo HTTP/1.0\r\n\r\n")
            assert client.answer().headers["connection"] == "close"
            assert client.ended()

    def test_a_client_that_half_closes_still_gets_its_answers(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/later") + post("/echo", b"x"))
            client.half_close()
            front.script.wait(lambda: len(front.script.handled) == 2)
            front.answer(0, b"1")
            assert client.answer().body == b"1"
            assert client.answer().json["body"] == "x"
            assert client.ended()

    def test_half_closing_with_requests_held_back_answers_all_of_them(self) -> None:
        with serving(requests_outstanding_max=2) as front, front.client() as client:
            script = front.script
            client.send(b"".join(post(f"/later/{n}") for n in range(6)))
            client.half_close()
            for n in range(6):
                script.wait_for_later(n + 1)
                front.answer(n, b"%d" % n)
            assert [client.answer().body for _ in range(6)] == [b"%d" % n for n in range(6)]
            assert client.ended()

    @pytest.mark.parametrize(
        "partial", [post("/echo", b"x" * 100)[:-1], chunked("/echo", b"abc")[:-3]]
    )
    def test_a_body_cut_off_by_a_half_close_is_400_and_gives_its_token_back(
        self, partial: bytes
    ) -> None:
        with serving() as front, front.client() as client:
            client.send(partial)
            client.half_close()
            answer = client.answer()
            assert (answer.status, answer.code) == (400, "body_truncated")
            assert client.ended()
            assert not front.script.handled
            assert not front.script.tokens

    def test_a_head_cut_off_by_a_half_close_is_400(self) -> None:
        with serving() as front, front.client() as client:
            client.send(b"POST /echo HTT")
            client.half_close()
            assert client.answer().status == 400
            assert client.ended()

    @pytest.mark.parametrize(
        "partial", [post("/echo", b"x" * 100)[:-1], chunked("/echo", b"abc")[:-3]]
    )
    def test_a_reset_inside_a_body_gives_the_token_back(self, partial: bytes) -> None:
        with serving() as front, front.client() as client:
            client.send(partial)
            front.script.wait(lambda: front.script.tokens)
            client.reset()
            front.script.wait(lambda: not front.script.tokens)
            front.drained()
            assert not front.script.handled

    def test_a_reset_tells_the_requests_that_wait(self) -> None:
        with serving() as front, front.client() as client:
            script = front.script
            client.send(post("/later/a") + post("/later/b"))
            script.wait_for_later(2)
            client.reset()
            script.wait(lambda: script.closed == ["/later/a", "/later/b"])
            front.drained()
            front.answer(0, b"{}")
            assert script.later[0].connection_closed


class TestDraining:
    def test_draining_ends_idle_connections_and_lets_answers_out_first(self) -> None:
        with serving() as front, front.client() as idle, front.client() as busy:
            script = front.script
            idle.send(get("/echo"))
            assert idle.answer().status == 200
            busy.send(post("/later/1") + post("/later/2"))
            script.wait_for_later(2)
            front.call(front.server.stop_accepting)
            front.call(front.server.drain)
            assert idle.ended()
            for n in range(2):
                front.answer(n, b"%d" % n)
            answers = [busy.answer() for _ in range(2)]
            assert [a.headers.get("connection") for a in answers] == [None, "close"]
            assert busy.ended()
            busy.sock.close()
            front.drained()

    def test_a_request_under_way_when_draining_begins_is_answered_with_the_end(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/echo", b"abc")[:-1])
            front.script.wait(lambda: front.script.tokens)
            front.call(front.server.drain)
            client.send(b"c")
            answer = client.answer()
            assert (answer.json["body"], answer.headers["connection"]) == ("abc", "close")
            assert client.ended()

    def test_pipelined_requests_are_all_answered_while_draining(self) -> None:
        with serving() as front, front.client() as client:
            client.send(post("/later"))
            front.script.wait_for_later(1)
            front.call(front.server.drain)
            client.send(b"".join(post("/echo", b"%d" % n) for n in range(5)))
            front.script.wait(lambda: len(front.script.handled) == 6)
            front.answer(0, b"{}")
            answers = [client.answer() for _ in range(6)]
            assert [a.headers.get("connection") for a in answers] == [None] * 5 + ["close"]
            assert client.ended()

    def test_a_client_that_does_not_listen_is_refused_after_stop_accepting(self) -> None:
        with serving() as front:
            front.call(front.server.stop_accepting)
            with pytest.raises(ConnectionRefusedError), front.client():
                pass


class TestTimeouts:
    def test_a_slow_body_is_503_with_retry_after_and_its_token_comes_back(self) -> None:
        with serving(body_timeout_ms=200) as front, front.client() as client:
            client.send(post("/echo", b"abc")[:-1])
            answer = client.answer()
            assert (answer.status, answer.code) == (503, "body_timeout")
            assert answer.headers["retry-after"] == "1"
            assert client.ended()
            assert not front.script.tokens
            assert not front.script.handled

    def test_a_slow_chunked_body_is_503(self) -> None:
        with serving(body_timeout_ms=200) as front, front.client() as client:
            client.send(chunked("/echo", b"abc")[:-4])
            assert client.answer().status == 503
            assert client.ended()

    def test_a_slow_head_is_503(self) -> None:
        with serving(head_timeout_ms=200) as front, front.client() as client:
            client.send(b"POST /echo HTTP/1.1\r\nHost: a\r\n")
            answer = client.answer()
            assert (answer.status, answer.code) == (503, "body_timeout")
            assert client.ended()

    def test_a_stalled_refused_body_ends_the_connection(self) -> None:
        with serving(body_timeout_ms=200) as front, front.client() as client:
            client.send(post("/full", b"abc")[:-1])
            assert client.answer().status == 429
            assert client.ended()

    def test_an_idle_connection_is_closed_without_a_word(self) -> None:
        with serving(idle_timeout_ms=200) as front, front.client() as client:
            assert client.ended()

    def test_a_connection_that_waits_for_its_answer_is_not_idle(self) -> None:
        with serving(linger_ms=200) as front, front.client() as waiting:
            waiting.send(post("/later"))
            front.script.wait_for_later(1)
            # Only now: before it sends, it is idle for as long as this thread gets no CPU.
            front.server._limits = HttpLimits(linger_ms=200, idle_timeout_ms=200)
            for _ in range(3):  # each is accepted, and ends, by the same clock
                with front.client() as idle:
                    assert idle.ended()
            front.answer(0, b"1")
            assert waiting.answer().body == b"1"

    def test_a_client_that_never_closes_is_dropped_after_the_linger_time(self) -> None:
        with serving(linger_ms=200) as front, front.client() as client:
            client.send(post("/echo", b"", "Connection: close"))
            assert client.answer().status == 200
            assert client.ended()
            front.drained()

    def test_a_client_that_takes_no_answers_is_dropped_in_the_end(self) -> None:
        with (
            serving(write_timeout_ms=200, write_buffer_high_bytes=65_536) as front,
            front.client() as client,
        ):
            client.send(get(f"/big?bytes={32 << 20}"))
            front.script.wait(lambda: front.script.handled)
            front.drained()
