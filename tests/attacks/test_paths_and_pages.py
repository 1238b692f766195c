"""Requests that a proxy, an address or a browser was supposed to stop: other spellings of a path,
names that were made to lead to this machine, pages of other origins."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from compaction.access.http_calls import call, socket_address
from tests.e2e.daemon import Answer, Daemon
from tests.e2e.subscribing import Subscription
from tests.e2e.wire import Wire

RECORDS = b'{"records":[{"data":"planted"}]}'
JSON = "Content-Type: application/json"
PAGE = ("Origin: https://evil.example", "Sec-Fetch-Site: cross-site")
LINK = ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document")


def asked(
    daemon: Daemon,
    method: str,
    target: str,
    *fields: str,
    body: bytes = b"",
    host: str = "127.0.0.1",
) -> Answer:
    """The answer to a request as an attacker writes it. Where there are tokens, who has none gets
    nowhere, and the answer is to one who has stolen the victim's."""
    if daemon.token:
        bare = sent(daemon, method, target, *fields, body=body, host=host)
        assert bare.status in (401, 403, 404, 421) or target == "/readyz", bare
        fields = (*fields, f"Authorization: Bearer {daemon.token}")
    return sent(daemon, method, target, *fields, body=body, host=host)


def sent(
    daemon: Daemon, method: str, target: str, *fields: str, body: bytes, host: str
) -> Answer:  # fmt: skip
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}", *fields, "Connection: close"]
    if body or method != "GET":
        lines.append(f"Content-Length: {len(body)}")
    with Wire(daemon.port) as wire:
        return wire.ask("\r\n".join(lines).encode() + b"\r\n\r\n" + body)


def refused(answer: Answer, status: int, code: str) -> None:
    assert (answer.status, answer.code) == (status, code), answer


def offsets(daemon: Daemon) -> int:
    """How many records the attacked topic has."""
    return int(daemon.diff("secrets")["head_seq"])


@pytest.mark.parametrize(
    "target",
    [
        "/v0/%61dmin/lake", "/v0/admi%6e/lake", "/%76%30/admin/lake", "/v0/admin/%6cake",
        "/v0/%2561dmin/lake", "//v0/admin/lake", "/v0//admin/lake", "/v0/./admin/lake",
        "/v0/x/../admin/lake", "/V0/ADMIN/lake", "/v0/admin;x/lake", "/v0%2fadmin%2flake",
    ],
)  # fmt: skip
def test_no_other_spelling_leads_to_the_admin_api(victim: Daemon, target: str) -> None:
    for method in ("GET", "POST", "OPTIONS"):
        refused(asked(victim, method, target), 404, "not_found")


def test_no_spelling_at_all_leads_to_it_over_tcp(victim: Daemon) -> None:
    begin = b'["attacker","host",0,1,null]'
    for target in ("/v0/admin/lake", "http://127.0.0.1/v0/admin/lake", "/v0/admin/lake?x=1"):
        refused(asked(victim, "GET", target), 403, "admin_over_tcp")
    for path in ("ledger/lake.runs.begin", "catalog/lake.catalog.swap", "ledger/nothing"):
        refused(asked(victim, "POST", f"/v0/admin/{path}", JSON, body=begin), 403, "admin_over_tcp")
    assert call(socket_address(str(victim.data)), "GET", "/v0/admin/live_leases") == b"[]"


@pytest.mark.parametrize("host", ["evil.example", "evil.example:7440", "10.0.0.1", ""])
def test_a_page_whose_name_was_rebound_to_this_machine_neither_writes_nor_reads(
    victim: Daemon, host: str
) -> None:
    before = offsets(victim)
    own = (f"Origin: http://{host}", "Sec-Fetch-Site: same-origin", JSON)
    for target in ("/v0/topics/secrets", f"http://{host or 'evil.example'}/v0/topics/secrets"):
        refused(asked(victim, "POST", target, *own, body=RECORDS, host=host), 421, "misdirected")
    refused(
        asked(victim, "POST", "http://evil.example/v0/topics/secrets", JSON, body=RECORDS),
        421, "misdirected",
    )  # fmt: skip
    for path in ("/v0/status", "/v0/topics", "/readyz", "/v0/admin/lake", "/nothing"):
        refused(asked(victim, "GET", path, host=host), 421, "misdirected")
    assert offsets(victim) == before


@pytest.mark.parametrize("fields", [PAGE, PAGE[:1], PAGE[1:], ("Origin: null",)])
def test_a_foreign_page_neither_writes_nor_consumes_nor_pushes(
    victim: Daemon, fields: Sequence[str]
) -> None:
    before = offsets(victim)
    mine = Subscription(victim, "secrets", "mine", start="earliest")
    at = mine.path
    for method, path in (
        ("GET", f"{at}/consume?consumer=evil&max=1"), ("POST", f"{at}/push/test"),
        ("DELETE", at), ("DELETE", "/v0/topics/secrets"), ("PUT", "/v0/topics/planted"),
        ("POST", "/v0/topics/secrets"), ("GET", "/v0/topics/secrets"), ("GET", "/v0/status"),
        ("OPTIONS", "/v0/topics/secrets"), ("GET", "/v0/admin/lake"),
    ):  # fmt: skip
        refused(asked(victim, method, path, *fields), 403, "foreign_page")
    assert offsets(victim) == before
    messages = mine.take("honest", 1)
    assert [message["data"] for message in messages] == ["the record"]
    assert victim.ask("DELETE", at).status == 200
    assert victim.get("/v0/topics/planted").status == 404


def test_a_link_on_a_foreign_page_shows_and_takes_nothing(victim: Daemon) -> None:
    assert asked(victim, "GET", "/v0/status", *LINK).status == 200
    at = Subscription(victim, "secrets", "linked").path
    refused(asked(victim, "GET", f"{at}/consume?consumer=evil", *LINK), 403, "foreign_page")
    refused(asked(victim, "POST", "/v0/topics/secrets", *LINK, JSON, body=RECORDS), 403,
            "foreign_page")  # fmt: skip
    refused(asked(victim, "GET", "/v0/admin/lake", *LINK), 403, "not_for_pages")


def test_what_people_programs_and_probes_send_is_answered(victim: Daemon) -> None:
    assert asked(victim, "GET", "/readyz", host="localhost:7440").status == 200
    assert asked(victim, "GET", "/v0/topics/secret%73", host="[::1]").status == 200
    assert asked(victim, "GET", "/v0/status", "Sec-Fetch-Site: none", *LINK[1:]).status == 200
    with Wire(victim.port) as wire:  # as HAProxy checks
        assert wire.ask(b"GET /livez HTTP/1.0\r\n\r\n").status == 200
