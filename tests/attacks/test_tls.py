"""TLS with clients that do not finish, do not end, do not take, or are not who they say."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from daemon.access.token_file import Scope, TokenFile
from tests.e2e.daemon import HANG_S, UNANSWERED, Daemon, wait_until
from tests.e2e.processes import kill_shards, shard_pids
from tests.e2e.secured import BAD, Authority, Secured, asked, secured, spoil
from tests.e2e.wire import request

RECORD = {"records": [{"data": "by TLS"}]}


@pytest.fixture(scope="module")
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with secured(tmp_path_factory.mktemp("tls")) as made:
        yield made


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Secured]:
    """A daemon for one test, whose certificate it spoils."""
    with secured(tmp_path) as made:
        yield made


class Guarded(NamedTuple):
    """A daemon with tokens, that also takes certificates of clients."""

    front: Secured
    tokens: TokenFile
    clients: Authority


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    clients, tokens = Authority(folder / "clients"), TokenFile(folder / "tokens.json")
    tokens.issue("first", [Scope.READ])
    settings = {"auth_file": tokens.path, "tls_client_ca": clients.file}
    with secured(folder, settings=settings) as front:
        yield Guarded(front, tokens, clients)


def hello() -> bytes:
    """The first message of a client."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    said = ssl.MemoryBIO()
    engine = client.wrap_bio(ssl.MemoryBIO(), said, server_hostname="localhost")
    with suppress(ssl.SSLWantReadError):
        engine.do_handshake()
    return said.read()


def by_tcp(port: int) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=HANG_S)


def read_to_the_end(line: socket.socket) -> bytes:
    """What comes until the other side ends; with a reset it has ended, too."""
    found = b""
    with suppress(ConnectionResetError):
        while data := line.recv(1 << 16):
            found += data
    return found


def shown_by(front: Secured) -> bytes | None:
    """The certificate that is shown now."""
    with front.connected() as line:
        return line.getpeercert(binary_form=True)


# -- whoever speaks something else ---------------------------------------------------------------


def test_clear_text_is_told_to_use_tls(front: Secured) -> None:
    with by_tcp(front.port) as line:
        line.sendall(request("GET", "/livez"))
        answer = read_to_the_end(line)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"use https://" in answer


def test_tls_is_told_of_clear_text(front: Secured) -> None:
    with by_tcp(front.daemon.port) as line:
        line.sendall(hello())
        answer = read_to_the_end(line)
    assert answer.startswith(b"HTTP/1.1 400 ") and b"tls_listen" in answer


def test_bytes_that_are_neither_end_the_connection(front: Secured) -> None:
    for first in (b"\x00" * 64, b"\x16\x03\x01\xff\xff" + b"x" * 70_000, b"\x80\x2e\x01\x00\x02"):
        with by_tcp(front.port) as line:
            with suppress(ConnectionResetError, BrokenPipeError):
                line.sendall(first)
            line.shutdown(socket.SHUT_WR)
            assert b"HTTP" not in read_to_the_end(line)
    assert front.ask("GET", "/livez").status == 200


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_versions_before_1_2_are_refused(front: Secured) -> None:
    context = front.authority.context
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError, match=r"PROTOCOL_VERSION|protocol version"):
        front.connected(context)


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_served_with_http_1_1(front: Secured, version: ssl.TLSVersion) -> None:
    context = front.authority.context
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2", "http/1.1"])
    with front.connected(context) as line:
        assert line.selected_alpn_protocol() == "http/1.1"
    assert front.ask("GET", "/livez", context=context).status == 200


def test_a_client_that_trusts_others_sends_nothing(front: Secured, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        front.connected(Authority(tmp_path).context)


# -- messages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [6, 16_200, 17_000, 65_536, 4 << 20, 15 << 20])
def test_bodies_of_any_size_come_whole(front: Secured, size: int) -> None:
    part = min(size, 500_000)
    sent = [{"data": f"{number:06}" + "x" * (part - 6)} for number in range(size // part)]
    with front.client() as client:
        made = asked(client, "POST", f"/v0/topics/size.{size}", {"records": sent})
        assert made.status == 200, made.body
    assert [{"data": each["data"]} for each in front.daemon.read_all(f"size.{size}")] == sent


def test_pipelined_requests_are_answered_in_order(front: Secured) -> None:
    bodies = [b'{"records":[{"data":%d}]}' % number for number in range(100)]
    sent = b"".join(request("POST", "/v0/topics/pipelined", body) for body in bodies)
    with front.connected() as line:
        line.sendall(sent)
        found = b""
        while len(re.findall(rb'"last_seq":\d+', found)) < len(bodies):
            found += line.recv(1 << 16)
    assert [int(each) for each in re.findall(rb'"last_seq":(\d+)', found)] == [*range(1, 101)]


@pytest.mark.parametrize("how", ["close_notify", "without"])
def test_a_close_in_the_middle_of_a_body_stores_nothing(front: Secured, how: str) -> None:
    topic = f"cut.{how}"
    sent = request("POST", f"/v0/topics/{topic}", json.dumps(RECORD).encode())
    assert front.ask("PUT", f"/v0/topics/{topic}").status == 201
    line = front.connected()
    line.sendall(sent[:-1])
    if how == "close_notify":
        with suppress(ssl.SSLError, OSError):
            line.unwrap()
    line.close()
    assert front.ask("POST", f"/v0/topics/{topic}", RECORD).json["first_seq"] == 1
    assert len(front.daemon.read_all(topic)) == 1


def test_an_answer_ends_with_a_close_notify(front: Secured) -> None:
    with front.connected() as line:
        line.sendall(request("GET", "/livez", connection="close"))
        found = b""
        while data := line.recv(1 << 16):  # an end without a close_notify raises SSLEOFError
            found += data
    assert found.startswith(b"HTTP/1.1 200 ")


def test_a_stream_goes_by_tls(front: Secured) -> None:
    assert front.ask("PUT", "/v0/topics/streamed").status == 201
    with front.connected() as line:
        line.sendall(request("GET", "/v0/topics/streamed/watch"))
        found = line.recv(1 << 16)
        for number in range(50):
            data = f"number {number};"
            assert front.ask("POST", "/v0/topics/streamed", {"records": [{"data": data}]}).status \
                == 200  # fmt: skip
            while data.encode() not in found:
                found += line.recv(1 << 16)


# -- handshakes ----------------------------------------------------------------------------------


def test_whoever_says_nothing_is_gone_after_a_while(front: Secured) -> None:
    with ExitStack() as stack:
        lines = [stack.enter_context(by_tcp(front.port)) for _ in range(3)]
        lines[1].sendall(hello()[:50])
        lines[2].sendall(hello())
        for line in lines:
            read_to_the_end(line)
        assert front.ask("GET", "/livez").status == 200


def half_open(front: Secured, count: int, stack: ExitStack) -> None:
    first = hello()
    for _ in range(count):
        line = stack.enter_context(by_tcp(front.port))
        with suppress(ConnectionResetError, BrokenPipeError):
            line.sendall(first)


@pytest.mark.slow
def test_ten_thousand_half_open_handshakes_keep_nobody_out(front: Secured) -> None:
    bound_bytes = front.daemon.status()["memory_bound_bytes"]
    process = psutil.Process(shard_pids(front.daemon)[0])
    before_bytes = process.memory_info().rss
    with ExitStack() as stack:
        half_open(front, 10_000, stack)
        assert front.ask("POST", "/v0/topics/honest", RECORD).status == 200
        taken_bytes = process.memory_info().rss - before_bytes
        assert process.memory_info().rss < bound_bytes
        assert taken_bytes < 2_048 * (44 << 10) + (32 << 20), "at most 2,048 are under way"
    assert "TLS handshakes failed" in front.daemon.text


# -- certificates --------------------------------------------------------------------------------


def test_another_certificate_is_shown_without_ending_anything(front: Secured) -> None:
    before, told = shown_by(front), len(front.daemon.log)
    with front.client() as kept, front.connected() as slow:
        assert asked(kept, "POST", "/v0/topics/a", RECORD).status == 200
        body = json.dumps({"records": [{"data": "x" * 20_000}]}).encode()
        slow.sendall(request("POST", "/v0/topics/a", body)[: -len(body)])
        front.authority.issue()
        wait_until(lambda: shown_by(front) != before, "the new certificate")
        assert asked(kept, "POST", "/v0/topics/a", RECORD).json["first_seq"] == 2
        slow.sendall(body)
        assert b'"first_seq":3' in slow.recv(1 << 16)
    wait_until(lambda: read_again(front.daemon, told), "the log to say so")


KEPT, RELOADED = "stays in force", "configuration reloaded"


def says(front: Secured, text: str, more_than: int = 0) -> bool:
    """Whether the log has it, and more often than before."""
    return front.daemon.text.count(text) > more_than


@pytest.mark.slow
def test_a_bad_pair_leaves_the_old_one_in_force_and_says_so_once(own: Secured) -> None:
    before, authority = shown_by(own), own.authority
    for how in BAD:
        told, reloads = len(own.daemon.log), own.daemon.text.count(RELOADED)
        message = spoil(authority, how)
        wait_until(partial(says, own, message), f"the log to say: {message}")
        os.kill(own.daemon.process.pid, signal.SIGHUP)
        wait_until(partial(says, own, RELOADED, reloads), "the reload")
        assert shown_by(own) == before, how
        # The pair may have been read with one of two files replaced: that is said by itself.
        kept = [line for line in own.daemon.log[told:] if KEPT in line and message in line]
        assert len(kept) == 1, (how, kept)
    assert "tls_" in own.daemon.alarm("certificate_unusable")["message"]
    kill_shards(own.daemon, 0)
    assert shown_by(own) == before, "a successor has the pair in force, whatever the files are"
    authority.issue()
    wait_until(lambda: shown_by(own) != before, "the next good pair")
    wait_until(lambda: not own.daemon.status()["alarms"], "the end of the alarm")


def test_a_daemon_does_not_start_with_a_bad_pair(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "tls")
    message = spoil(authority, "expired")
    daemon = Daemon(tmp_path / "data", settings=authority.settings)
    daemon.start()
    wait_until(lambda: daemon.process.poll() is not None, "the daemon to refuse")
    assert daemon.stop() == 1
    assert message in daemon.text


def shakes_hands_slowly(front: Secured) -> bool:
    """Another certificate is shown before a handshake is complete. Whether that is in time: the
    daemon ends one after five seconds."""
    before = shown_by(front)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    engine = front.authority.context.wrap_bio(down, up, server_hostname="localhost")
    with by_tcp(front.port) as line:
        with suppress(ssl.SSLWantReadError):
            engine.do_handshake()
        first = up.read()
        line.sendall(first[:100])
        front.authority.issue()
        os.kill(front.daemon.process.pid, signal.SIGHUP)
        wait_until(lambda: shown_by(front) != before, "the new certificate")
        with suppress(ConnectionError):
            line.sendall(first[100:])
            while data := line.recv(1 << 16):
                down.write(data)
                try:
                    engine.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    continue
            else:
                return False
            engine.write(request("GET", "/livez", connection="close"))
            line.sendall(up.read())
            down.write(line.recv(1 << 16))
            assert engine.read().startswith(b"HTTP/1.1 200 ")
            return True
    return False


def test_a_reload_in_the_middle_of_a_handshake_does_not_disturb_it(front: Secured) -> None:
    wait_until(lambda: shakes_hands_slowly(front), "a handshake that is not too slow")


def read_again(daemon: Daemon, after: int) -> bool:
    """Whether a pair was read since the log had this many lines."""
    return any("the certificate was read again" in line for line in daemon.log[after:])


@pytest.mark.parametrize(
    "reloads", [5, pytest.param(1_000, marks=pytest.mark.slow)], ids=["few", "thousand"]
)
def test_reloads_of_certificate_and_tokens_under_load_make_no_error(
    guarded: Guarded, reloads: int
) -> None:
    """The supervisor reads each pair. A shard follows twice a second, with what is there then."""
    own, tokens = guarded.front, guarded.tokens
    token = tokens.issue(f"kept{reloads}", list(Scope))[1]
    bearer = f"Bearer {token}"
    wait_until(
        lambda: own.ask("GET", "/v0/topics", authorization=bearer).status == 200, "the token"
    )
    errors: list[Exception] = []
    ended = threading.Event()
    shown = {b""}  # to who came

    def load(requests: int) -> None:
        while not (ended.is_set() or errors):
            try:
                with own.client() as client:
                    for _ in range(requests):
                        made = asked(
                            client, "POST", "/v0/topics/t", RECORD,
                            authorization=bearer,
                        )  # fmt: skip
                        assert made.status == 200, made
                    if requests == 1:
                        assert isinstance(client.sock, ssl.SSLSocket)
                        shown.add(client.sock.getpeercert(binary_form=True) or b"")
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=load, args=(requests,)) for requests in (1, 50)]
    for thread in threads:
        thread.start()
    pairs = [own.authority.pair() for _ in range(8)]
    secret = ""
    try:
        for number in range(reloads):
            certificate, key = pairs[number % len(pairs)]
            told = len(own.daemon.log)
            own.authority.show(certificate, key)
            _, secret = tokens.issue(f"other{reloads}-{number}", [Scope.READ])
            if number > 10:
                tokens.revoke(f"other{reloads}-{number - 10}")
            os.kill(own.daemon.process.pid, signal.SIGHUP)
            wait_until(partial(read_again, own.daemon, told), "the pair to be read")
            assert not errors
        first, end, _ = certificate.decode().partition(ssl.PEM_FOOTER)
        last = ssl.PEM_cert_to_DER_cert(first + end)
        shown.clear()
        wait_until(lambda: last in shown or errors, "the last certificate")
        last_bearer = f"Bearer {secret}"
        wait_until(
            lambda: own.ask("GET", "/v0/topics/t", authorization=last_bearer).status == 200,
            "the last token",
        )
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert not errors


# -- clients with certificates -------------------------------------------------------------------


def test_a_certificate_stands_for_the_token_that_names_it(guarded: Guarded) -> None:
    front, tokens, clients = guarded
    other = tokens.issue("reader", [Scope.READ])[1]
    secret = tokens.issue("writer", [Scope.PRODUCE], ["a"], certificate="shop.example")[1]

    def context(name: str | None) -> ssl.SSLContext:
        made = front.authority.context
        if name is not None:
            clients.ca.issue_cert(name).configure_cert(made)
        return made

    shop, stranger, nobody = (context(name) for name in ("shop.example", "evil.example", None))
    wait_until(lambda: front.ask("POST", "/v0/topics/a", RECORD, shop).status == 200, "the token")
    for _ in range(2):  # the second time the head is known
        assert front.ask("POST", "/v0/topics/a", RECORD, shop).status == 200
        for refused in (stranger, nobody):
            assert front.ask("POST", "/v0/topics/a", RECORD, refused).status == 401
    assert front.ask("POST", "/v0/topics/b", RECORD, shop).status == 403
    # A token that is sent counts, and not the certificate.
    sent = {"authorization": f"Bearer {other}"}
    assert front.ask("POST", "/v0/topics/a", RECORD, shop, **sent).status == 403
    sent = {"authorization": f"Bearer {secret}"}
    assert front.ask("POST", "/v0/topics/a", RECORD, stranger, **sent).status == 200
    # Nor does the certificate of another authority.
    foreign = front.authority.context
    front.authority.ca.issue_cert("shop.example").configure_cert(foreign)
    with pytest.raises(UNANSWERED):
        front.ask("POST", "/v0/topics/a", RECORD, foreign)
    with front.client(shop) as kept:
        assert asked(kept, "POST", "/v0/topics/a", RECORD).status == 200
        tokens.revoke("writer")
        wait_until(
            lambda: asked(kept, "POST", "/v0/topics/a", RECORD).status == 401,
            "the revocation",
        )


# -- clients that do not take --------------------------------------------------------------------


@pytest.mark.slow
def test_what_slow_clients_do_not_take_is_counted_as_it_was_sent(front: Secured) -> None:
    """Two hundred watchers of one object: in clear text it is kept once, by TLS for each."""
    process = psutil.Process(shard_pids(front.daemon)[0])
    assert front.ask("PUT", "/v0/topics/untaken").status == 201
    with ExitStack() as stack:
        for _ in range(200):
            line = stack.enter_context(closing(front.connected()))
            line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            line.sendall(request("GET", "/v0/topics/untaken/watch"))
            assert line.recv(1024)
        before_bytes = process.memory_info().rss
        for _ in range(3):
            big = {"records": [{"data": "x" * 1_000_000}]}
            assert front.ask("POST", "/v0/topics/untaken", big).status == 200
        wait_until(lambda: "whose clients took nothing" in front.daemon.text, "some to be closed")
        assert process.memory_info().rss - before_bytes < 200 << 20
