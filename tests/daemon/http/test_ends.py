"""The end of a connection and its waits, over a transport in memory with given times."""

from __future__ import annotations

from daemon.http.limits import HttpLimits
from daemon.http.server import Server
from tests.daemon.http.front import Script, get, post
from tests.daemon.http.memory_transport import connect

MS = 1_000_000


def server_with(limits: HttpLimits) -> Server:
    server = Server()
    server.application = Script()
    server.limits = limits
    return server


def test_input_after_the_last_answer_is_thrown_away_until_the_client_closes() -> None:
    connection, transport = connect(server_with(HttpLimits(body_bytes_max=1000)))
    connection.data_received(post("/echo", b"x" * 2000)[:1500])
    assert transport.written.startswith(b"HTTP/1.1 413 ")
    # Half-closed only: a full close with unread input would reset the connection, and the reset
    # could overtake the answer.
    assert (transport.ended, transport.closed) == (True, False)
    connection.data_received(b"x" * 500 + get("/echo"))
    assert transport.written.count(b"HTTP/1.1 ") == 1
    assert not connection.eof_received()


def test_a_client_that_keeps_sending_after_the_last_answer_is_cut_off_in_the_end() -> None:
    limits = HttpLimits(body_bytes_max=1000, linger_bytes_max=5000)
    connection, transport = connect(server_with(limits))
    connection.data_received(post("/echo", b"x" * 2000))
    connection.data_received(b"x" * 3000)
    assert not transport.closed
    connection.data_received(b"x" * 1000)
    assert transport.closed


def test_bytes_that_dribble_in_do_not_extend_the_time_for_a_head() -> None:
    connection, transport = connect(server_with(HttpLimits(head_timeout_ms=20_000)))
    connection.data_received(get("/echo") + b"POST /ec")
    began_ns = connection.last_ns
    while connection.last_ns == began_ns:
        connection.data_received(b"h")
    connection.check(began_ns + 20_000 * MS)
    assert b"503" not in transport.written
    connection.check(began_ns + 20_001 * MS)
    assert b"HTTP/1.1 503 " in transport.written
    assert transport.ended


def test_a_second_head_has_its_own_time() -> None:
    connection, transport = connect(server_with(HttpLimits(head_timeout_ms=20_000)))
    whole = get("/echo")
    connection.data_received(whole[:5])
    began_ns = connection.last_ns
    connection.data_received(whole[5:] + whole[:5])
    while connection.last_ns == began_ns:
        connection.data_received(whole[5:] + whole[:5])
    connection.check(connection.last_ns + 20_000 * MS)
    assert b"503" not in transport.written


def test_idle_time_counts_from_the_last_answer() -> None:
    server = server_with(HttpLimits(idle_timeout_ms=75_000))
    connection, transport = connect(server)
    connection.data_received(post("/later"))
    asked_ns = connection.last_ns
    answered_ns = server.now_ns = asked_ns + 60_000 * MS
    connection.check(answered_ns)
    script = server.application
    assert isinstance(script, Script)
    script.later[0].respond_ok_json(b"{}")
    connection.check(answered_ns + 75_000 * MS)
    assert not transport.closed
    connection.check(answered_ns + 75_001 * MS)
    assert transport.closed
