"""The HTTP client of push, against a real receiver that does what none should."""

from __future__ import annotations

import asyncio
import json
import resource
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest
import uvloop

from delivery.push.posts.addresses import AllowList
from delivery.push.posts.answers import AnswerOutcome, PushAnswer, PushFailure, judge
from delivery.push.posts.client import PushClient
from tests.delivery.push.evil_process import EvilReceiver

LOCAL = AllowList(["127.0.0.0/8", "::1"])
T = TypeVar("T")
# Long enough for a busy machine; what must time out has its own.
PATIENT_MS = 60_000


def run(
    scenario: Callable[[PushClient], Awaitable[T]],
    allow: AllowList = LOCAL,
    ca_file: str | None = None,
    **options: Any,
) -> T:
    """Runs a scenario with a client of its own, in the event loop that shards use."""

    async def main() -> T:
        client = PushClient(allow, ca_file, **options)
        try:
            return await scenario(client)
        finally:
            await client.close()
            assert client.under_way == 0

    return uvloop.run(main())


def post(
    url: str,
    *,
    allow: AllowList = LOCAL,
    ca_file: str | None = None,
    timeout_ms: int = PATIENT_MS,
    body: bytes = b"{}",
    headers: Any = (),
    **options: Any,
) -> PushAnswer:
    """One POST of a new client."""
    return run(
        lambda client: client.post(url, headers, body, timeout_ms), allow, ca_file, **options
    )


async def seen(client: PushClient, evil: EvilReceiver, path: str) -> int:
    """How often the receiver was asked for a path."""
    answer = await client.post(f"{evil.plain}/seen", {}, b"", PATIENT_MS)
    count: int = json.loads(answer.head)["paths"].get(path, 0)
    return count


def test_an_answer_has_status_headers_beginning_and_address(evil: EvilReceiver) -> None:
    answer = post(f"{evil.plain}/ok")
    assert (answer.status, answer.failure, answer.head) == (200, None, b"ok")
    assert answer.address == evil.plain.removeprefix("http://")
    assert "X-Connection" in dict(answer.headers)
    assert answer.took_ms > 0
    assert judge(answer).outcome is AnswerOutcome.SUCCESS


def test_headers_are_sent_as_they_are_and_little_is_added(
    evil: EvilReceiver,
) -> None:
    pairs = [("content-type", "text/plain"), ("ce-id", "1"), ("X-Twice", "a"), ("X-Twice", "b%20c")]
    head = post(f"{evil.plain}/echo/a%2Fb?q=%20", headers=pairs, body=b"12345").head.decode()
    host = evil.plain.removeprefix("http://")
    assert head.splitlines() == [
        "POST /echo/a%2Fb?q=%20 HTTP/1.1",
        f"Host: {host}",
        "content-type: text/plain",
        "ce-id: 1",
        "X-Twice: a",
        "X-Twice: b%20c",
        "Content-Length: 5",
        "",
    ]


@pytest.mark.parametrize("size", [0, 1, 100_000, 4 << 20])
def test_a_body_arrives_whole(evil: EvilReceiver, size: int) -> None:
    assert post(f"{evil.plain}/length", body=bytes(size)).head == str(size).encode()


def test_connections_are_used_again(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> set[str]:
        answers = [
            await client.post(f"{evil.plain}/{path}", {}, b"x", PATIENT_MS)
            for path in ("ok", "status/500", "status/404", "ok")
        ]
        return {dict(answer.headers)["X-Connection"] for answer in answers}

    assert len(run(scenario)) == 1


def test_a_connection_that_the_receiver_has_closed_is_not_used_again(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> list[PushAnswer]:
        answers = []
        for _ in range(3):
            answers.append(await client.post(f"{evil.plain}/leaves", {}, b"x", PATIENT_MS))
            poster = client._poster
            assert poster is not None
            handlers = poster._connector._handlers
            while any(each.connected for each in handlers):  # noqa: ASYNC110
                await asyncio.sleep(0)  # until the news of the close
        return answers

    assert [answer.status for answer in run(scenario)] == [200, 200, 200]


def test_no_more_connections_are_made_than_posts_are_under_way(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> int:
        async def one_after_the_other() -> set[str]:
            answers = [
                await client.post(f"{evil.plain}/slow/5", {}, b"x", PATIENT_MS) for _ in range(5)
            ]
            return {dict(answer.headers)["X-Connection"] for answer in answers}

        return len(set.union(*await asyncio.gather(*(one_after_the_other() for _ in range(3)))))

    assert run(scenario) == 3


def test_a_post_without_a_place_is_not_sent_and_holds_the_endpoint(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> tuple[list[PushAnswer], int]:
        url = f"{evil.plain}/slow/100"
        posts = [client.post(url, {}, b"x", PATIENT_MS) for _ in range(3)]
        other = client.post(f"{evil.plain}/ok", {}, b"x", PATIENT_MS)
        answers = await asyncio.gather(*posts, other)
        return answers, await seen(client, evil, "/slow/100")

    answers, sent = run(scenario, connections_total=2)
    assert [answer.status for answer in answers] == [200, 200, None, 200]
    assert sent == 2
    assert "2 POSTs of this shard are under way" in answers[2].message
    assert judge(answers[2]).outcome is AnswerOutcome.HELD


def test_a_redirect_is_not_followed_and_cookies_are_not_kept(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> tuple[PushAnswer, int, PushAnswer]:
        answer = await client.post(f"{evil.plain}/redirect/ok/there", {}, b"x", PATIENT_MS)
        echo = await client.post(f"{evil.plain}/echo", {}, b"x", PATIENT_MS)
        return answer, await seen(client, evil, "/ok/there"), echo

    answer, followed, echo = run(scenario)
    assert (answer.status, followed) == (307, 0)
    assert b"cookie" not in echo.head.lower()


def test_proxies_of_the_environment_are_not_used(
    evil: EvilReceiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("no_proxy", raising=False)
    assert post(f"{evil.plain}/ok").status == 200


@pytest.mark.parametrize("status", [429, 503])
def test_a_pause_is_read_from_the_answer(evil: EvilReceiver, status: int) -> None:
    verdict = judge(post(f"{evil.plain}/status/{status}/7"))
    assert (verdict.outcome, verdict.retry_after_ms) == (AnswerOutcome.HELD, 7_000)


def test_a_pause_of_another_status_is_not_read(evil: EvilReceiver) -> None:
    assert post(f"{evil.plain}/status/500/7").retry_after_ms is None


@pytest.mark.parametrize(
    ("path", "failure", "sentence"),
    [
        ("nothing", PushFailure.CLOSED, "the connection was closed without an answer"),
        ("half", PushFailure.CLOSED, "the connection was closed before the end of the answer"),
        ("half-chunk", PushFailure.CLOSED, "the connection was closed before the end"),
        ("half-head", PushFailure.CLOSED, "the connection was closed without an answer"),
        ("continues", PushFailure.TOO_LARGE, "more than 16 interim answers"),
        ("garbage", PushFailure.NOT_HTTP, "the answer is not HTTP"),
        (
            "many-headers",
            PushFailure.TOO_LARGE,
            "more than 64 headers, one with more than 8,192 bytes",
        ),
        (
            "long-header",
            PushFailure.TOO_LARGE,
            "more than 64 headers, one with more than 8,192 bytes",
        ),
    ],
)
def test_an_answer_that_is_none_is_named(
    evil: EvilReceiver, path: str, failure: PushFailure, sentence: str
) -> None:
    answer = post(f"{evil.plain}/{path}")
    assert answer.failure is failure
    assert sentence in answer.message
    assert answer.address
    assert judge(answer).outcome is AnswerOutcome.RECEIVER


def test_a_body_whose_pieces_are_none_is_half_an_answer_or_none(evil: EvilReceiver) -> None:
    # It depends on whether it came with the head.
    answer = post(f"{evil.plain}/bad-chunk")
    assert answer.failure in (PushFailure.NOT_HTTP, PushFailure.CLOSED)


@pytest.mark.parametrize(
    ("path", "sentence"),
    [
        ("hang", "no answer within timeout_ms (1,000 ms)"),
        ("dripping-head", "no answer within"),
        ("drip", "the answer was not complete within"),
    ],
)
def test_a_receiver_that_takes_its_time_has_no_more_than_the_timeout(
    evil: EvilReceiver, path: str, sentence: str
) -> None:
    for timeout_ms in (1_000, 20_000):  # the longer one if it had no CPU to begin its answer
        answer = post(f"{evil.plain}/{path}", timeout_ms=timeout_ms)
        if sentence in answer.message:
            break
    assert answer.failure is PushFailure.TIMEOUT
    assert sentence in answer.message


@pytest.mark.parametrize("path", ["gigabyte", "endless", "bomb"])
def test_more_of_a_body_than_anyone_needs_is_not_read(evil: EvilReceiver, path: str) -> None:
    async def scenario(client: PushClient) -> tuple[PushAnswer, int]:
        before = psutil.Process().memory_info().rss
        answer = await client.post(f"{evil.plain}/{path}", {}, b"x", PATIENT_MS)
        return answer, psutil.Process().memory_info().rss - before

    answer, more_bytes = run(scenario)
    assert (answer.status, answer.failure) == (200, None)
    assert len(answer.head) <= 1_024
    assert more_bytes < 64 << 20


def test_a_body_without_a_length_ends_with_the_connection(evil: EvilReceiver) -> None:
    answer = post(f"{evil.plain}/until-closed")
    assert (answer.status, answer.failure, answer.head) == (200, None, b"all of it")


def test_another_protocol_is_no_answer_to_a_post(evil: EvilReceiver) -> None:
    answer = post(f"{evil.plain}/upgrades", timeout_ms=5_000)
    assert judge(answer).outcome is AnswerOutcome.RECEIVER


def test_an_answer_that_comes_before_the_body_is_sent_counts(evil: EvilReceiver) -> None:
    answer = post(f"{evil.plain}/early", body=bytes(64 << 20))
    assert (answer.status, answer.failure) == (413, None)


def test_a_receiver_that_does_not_read_has_no_more_than_the_timeout(evil: EvilReceiver) -> None:
    answer = post(f"{evil.plain}/deaf", body=bytes(64 << 20), timeout_ms=300)
    assert answer.failure is PushFailure.TIMEOUT


def test_an_answer_that_nobody_asked_for_is_not_the_next_posts(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> list[PushAnswer]:
        first = await client.post(f"{evil.plain}/twice", {}, b"x", PATIENT_MS)
        # The receiver is asked on another connection until it has answered again.
        await client.post(f"{evil.tls}/slow/40", {}, b"x", PATIENT_MS)
        return [first, await client.post(f"{evil.plain}/ok", {}, b"x", PATIENT_MS)]

    first, second = run(scenario, ca_file=evil.ca_file)
    assert first.head == b"first"
    assert second.head == b"ok"


def test_no_open_file_is_left_of_posts_however_they_end(evil: EvilReceiver) -> None:
    paths = ["ok", "hang", "drip", "gigabyte", "half", "half-head", "nothing", "many-headers"]
    paths += ["garbage", "continues", "early", "deaf", "upgrades", "leaves", "until-closed"]
    urls = [f"{evil.plain}/{path}" for path in paths]
    urls += [f"{evil.tls}/ok", f"{evil.tls}/hang", "http://10.0.0.1/", "http://localhost:9/"]

    async def all_of_them() -> None:
        client = PushClient(LOCAL, evil.ca_file)
        for url in (f"{evil.plain}/ok", f"{evil.tls}/ok", "http://localhost:9/"):
            await client.post(url, {}, b"", PATIENT_MS)  # what follows may not get so far
        await asyncio.gather(
            *(client.post(url, {}, bytes(1 << 20), 150) for url in urls for _ in range(2))
        )
        await client.close()
        await client.close()
        assert client.under_way == 0

    async def main() -> None:
        await all_of_them()  # opens what stays open, once
        before = psutil.Process().num_fds()
        await all_of_them()
        left = psutil.Process().num_fds() - before
        async with asyncio.timeout(60):
            while left > 0:  # they close within a few turns of the loop
                await asyncio.sleep(0)
                left = psutil.Process().num_fds() - before

    uvloop.run(main())


@pytest.mark.parametrize("url", ["http://localhost:9/", "http://127.0.0.1:9/", "http://[::1]:9/"])
def test_an_address_that_is_not_allowed_is_not_connected_to(url: str) -> None:
    answer = post(url, allow=AllowList(["public"]))
    assert answer.failure is PushFailure.FORBIDDEN
    assert "is not allowed by push_allow: add" in answer.message
    assert judge(answer).outcome is AnswerOutcome.RECEIVER


def test_no_connection_is_used_again_after_a_change_of_whom_to_call(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> list[PushAnswer]:
        first = await client.post(f"{evil.plain}/ok", {}, b"x", PATIENT_MS)
        client.set_rules(["public"], ())
        denied = await client.post(f"{evil.plain}/ok", {}, b"x", PATIENT_MS)
        client.set_rules(["127.0.0.0/8"], ())
        return [first, denied, await client.post(f"{evil.plain}/ok", {}, b"x", PATIENT_MS)]

    answers = run(scenario)
    assert [each.status for each in answers] == [200, None, 200]
    assert answers[1].failure is PushFailure.FORBIDDEN


def test_it_is_the_address_that_counts_and_not_the_name(evil: EvilReceiver) -> None:
    """A name leads to an address that is allowed, and at the next look to one that is not."""
    port = evil.plain.rpartition(":")[2]
    led = [["127.0.0.2"], ["127.0.0.1"]]

    async def resolve(_: str) -> list[str]:
        return led.pop(0)

    async def scenario(client: PushClient) -> list[PushAnswer]:
        url = f"http://rebinds.example:{port}/ok/in"
        first = await client.post(url, {}, b"x", PATIENT_MS)
        return [first, await client.post(url, {}, b"x", PATIENT_MS)]

    answers = run(scenario, AllowList(["127.0.0.2"]), resolve=resolve, names_kept_s=0)
    assert answers[0].failure is PushFailure.REFUSED
    assert answers[1].failure is PushFailure.FORBIDDEN
    assert "127.0.0.1 (rebinds.example leads there)" in answers[1].message
    assert run(lambda client: seen(client, evil, "/ok/in")) == 0


def test_of_several_addresses_those_that_are_allowed_are_tried(evil: EvilReceiver) -> None:
    async def resolve(_: str) -> list[str]:
        return ["10.0.0.1", "127.0.0.1"]

    port = evil.plain.rpartition(":")[2]
    answer = post(f"http://two.example:{port}/ok", resolve=resolve)
    assert (answer.status, answer.address) == (200, f"127.0.0.1:{port}")


def test_a_name_that_is_allowed_may_lead_to_any_address(evil: EvilReceiver) -> None:
    async def resolve(_: str) -> list[str]:
        return ["127.0.0.1"]

    port = evil.plain.rpartition(":")[2]
    allow = AllowList(["*.internal.example"])
    assert post(f"http://a.internal.example:{port}/ok", allow=allow, resolve=resolve).status == 200
    answer = post(f"http://internal.example:{port}/ok", allow=allow, resolve=resolve)
    assert answer.failure is PushFailure.FORBIDDEN


def test_tls_is_verified(evil: EvilReceiver) -> None:
    assert post(f"{evil.tls}/ok", ca_file=evil.ca_file).status == 200


@pytest.mark.parametrize("which", ["unknown authority", "other name", "expired", "no TLS at all"])
def test_without_a_valid_certificate_nothing_is_sent(evil: EvilReceiver, which: str) -> None:
    ca_file: str | None = evil.ca_file
    url = evil.tls
    if which == "unknown authority":
        ca_file = None
    elif which == "other name":
        url = evil.other_name
    elif which == "expired":
        url = evil.expired
    else:
        url = evil.plain.replace("http:", "https:")
    path = f"/ok/{which.replace(' ', '-')}"
    # The receiver without TLS waits for the end of what it takes for a head.
    answer = post(url + path, ca_file=ca_file, timeout_ms=500 if "no TLS" in which else PATIENT_MS)
    if which == "no TLS at all":
        assert answer.failure in (PushFailure.TLS, PushFailure.TIMEOUT)
    else:
        assert answer.failure is PushFailure.TLS
        assert answer.message.startswith("the certificate of localhost is not valid: ")
    assert judge(answer).outcome is AnswerOutcome.RECEIVER
    assert run(lambda client: seen(client, evil, path)) == 0


def test_a_file_of_certificates_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    async def scenario(client: PushClient) -> list[PushAnswer]:
        return [await client.post("http://127.0.0.1:9/", {}, b"", 1_000) for _ in range(2)]

    (tmp_path / "text.pem").write_text("no certificate")
    for name in ("missing.pem", "text.pem"):
        for answer in run(scenario, ca_file=str(tmp_path / name)):
            assert answer.failure is PushFailure.LOCAL
            assert f"push_ca_file {tmp_path / name}" in answer.message


def test_a_client_is_ready_when_a_post_would_begin_immediately(tmp_path: Path) -> None:
    async def scenario(client: PushClient) -> None:
        loaded = asyncio.Event()
        assert not client.is_ready(loaded.set)
        await loaded.wait()
        assert client.is_ready(loaded.clear)
        assert loaded.is_set()

    run(scenario)
    # One that cannot be is ready too: its POSTs say why.
    run(scenario, ca_file=str(tmp_path / "missing.pem"))


def test_a_connection_that_is_refused_and_a_name_without_address_are_named() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))  # bound, and does not listen
        port = listener.getsockname()[1]
        answer = post(f"http://127.0.0.1:{port}/")
    assert (answer.failure, answer.address) == (PushFailure.REFUSED, f"127.0.0.1:{port}")
    assert answer.message == f"127.0.0.1:{port} refuses connections"

    async def resolve(name: str) -> list[str]:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    answer = post("http://nowhere.example/", resolve=resolve)
    assert answer.failure is PushFailure.DNS
    assert answer.message == "nowhere.example has no address: Name or service not known"


def test_a_name_that_is_looked_up_forever_has_no_more_than_the_timeout() -> None:
    async def resolve(_: str) -> list[str]:
        await asyncio.Event().wait()
        return []

    answer = post("http://slow.example/", resolve=resolve, timeout_ms=50)
    assert answer.failure is PushFailure.TIMEOUT
    assert "no address of slow.example within" in answer.message


@pytest.mark.parametrize(
    ("url", "headers"),
    [
        ("http://127.0.0.1:9/\r\nX: y", {}),
        ("no url", {}),
        ("http://127.0.0.1:9/", {"X": "a\r\nY: b"}),
        ("http://127.0.0.1:9/", {"X": 7}),
    ],
)
def test_a_request_that_cannot_be_made_is_not_sent(url: str, headers: Any) -> None:
    # Nothing listens there: headers are looked at only with a connection, or before.
    answer = post(url, headers=headers)
    assert answer.failure in (PushFailure.REQUEST, PushFailure.REFUSED)


def test_a_header_that_ends_its_line_is_not_sent(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> tuple[PushAnswer, int]:
        url = f"{evil.plain}/ok/header"
        answer = await client.post(url, {"X": "a\r\nY: b"}, b"", PATIENT_MS)
        return answer, await seen(client, evil, "/ok/header")

    answer, count = run(scenario)
    assert (answer.failure, count) == (PushFailure.REQUEST, 0)


def test_too_few_open_files_hold_the_endpoint_and_blame_nobody(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> tuple[PushAnswer, PushAnswer]:
        await client.post(f"{evil.plain}/ok", {}, b"", PATIENT_MS)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
        try:
            # The kept connection is to another address.
            short = await client.post(f"{evil.tls}/ok", {}, b"", PATIENT_MS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        return short, await client.post(f"{evil.plain}/ok", {}, b"", PATIENT_MS)

    async def resolve(_: str) -> list[str]:
        return ["127.0.0.1"]

    short, after = run(scenario, resolve=resolve)
    assert short.failure is PushFailure.LOCAL
    assert judge(short).outcome is AnswerOutcome.HELD
    assert after.status == 200


def test_a_post_that_is_cancelled_gives_its_place_back(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> int | None:
        url = f"{evil.plain}/hang/cancel"
        hanging = asyncio.ensure_future(client.post(url, {}, b"", PATIENT_MS))
        other = asyncio.ensure_future(client.post(url, {}, b"", PATIENT_MS))
        while await seen(client, evil, "/hang/cancel") < 2:
            pass
        for each in (other, hanging):
            each.cancel()
        results = await asyncio.gather(hanging, other, return_exceptions=True)
        assert [type(each) for each in results] == [asyncio.CancelledError] * 2
        return (await client.post(f"{evil.plain}/ok", {}, b"", PATIENT_MS)).status

    assert run(scenario) == 200


def test_a_client_that_is_closed_answers_all_posts(evil: EvilReceiver) -> None:
    async def scenario(client: PushClient) -> list[PushAnswer]:
        url = f"{evil.plain}/hang/close"
        posts = [asyncio.ensure_future(client.post(url, {}, b"", PATIENT_MS)) for _ in range(3)]
        while await seen(client, evil, "/hang/close") < 3:
            pass
        await client.close()
        return [*await asyncio.gather(*posts), await client.post(url, {}, b"", PATIENT_MS)]

    answers = run(scenario)
    assert [answer.failure for answer in answers] == [PushFailure.CLOSED] * 3 + [PushFailure.LOCAL]
    assert answers[3].message == "the client is closed"


def test_who_does_not_push_does_not_load_the_library() -> None:
    """Neither the client nor the senders load it before there is something to POST."""
    code = (
        "import sys, daemon.process.delivery_side;"
        " import delivery.push.posts.client, delivery.push.posts.answers;"
        " print([name for name in sys.modules if name.partition('.')[0] in ('aiohttp', 'yarl')])"
    )
    root = Path(__file__).parents[4]
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True
    )
    assert found.stdout == "[]\n"
