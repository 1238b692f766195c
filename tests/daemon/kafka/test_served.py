"""The table of requests: as Kafka and the page have them, and what readers refuse."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kio.index import load_request_schema

from daemon.kafka.served import OPEN, SERVED, read_request, row_of
from daemon.kafka.wire import Malformed
from tests.daemon.kafka.frames import Key
from tests.daemon.kafka.test_messages import versions

PAGE = (Path(__file__).parents[3] / "docs" / "kafka.md").read_text()
ALL = [each for key in SERVED for each in versions(key)]


@pytest.mark.parametrize(("key", "version"), ALL)
def test_each_version_has_the_name_and_the_form_that_kafka_gives_it(key: int, version: int) -> None:
    schema = load_request_schema(key, version)
    assert schema.__name__ == f"{SERVED[key].name}Request"
    assert schema.__flexible__ == (version >= SERVED[key].versions.flexible_from)


def test_only_what_shows_a_token_comes_before_one_and_all_else_needs_a_scope() -> None:
    opened = {key for key, row in SERVED.items() if row.scopes is OPEN}
    assert opened == {Key.API_VERSIONS, Key.SASL_HANDSHAKE, Key.SASL_AUTHENTICATE}
    assert all(row.scopes for key, row in SERVED.items() if key not in opened)


def test_the_page_lists_each_request_with_its_versions_and_scopes() -> None:
    (listed,) = re.findall(r"^\| requests \| (.*) \|$", PAGE, re.MULTILINE)
    said = {name: (int(oldest), int(newest or oldest))
            for name, oldest, newest in re.findall(r"(\w+) (\d+)(?:-(\d+))?", listed)}  # fmt: skip
    assert said == {row.name: row.versions[:2] for row in SERVED.values()}
    table = PAGE.partition("| request | scope | |\n|---|---|---|\n")[2].partition("\n\n")[0]
    needed: dict[str, set[str]] = {}
    for line in table.splitlines():
        names, scopes = line.split("|")[1:3]
        for name in names.strip().split(", "):
            needed[name] = set(re.findall(r"`(\w+)`", scopes))
    assert needed == {row.name: {*row.scopes} for row in SERVED.values() if row.scopes is not OPEN}


@given(st.binary(max_size=60), st.sampled_from(ALL))
def test_no_bytes_do_more_than_be_refused(data: bytes, version: tuple[int, int]) -> None:
    head = version[0].to_bytes(2, "big") + version[1].to_bytes(2, "big") + bytes(4)
    for client in (b"", b"\xff\xff"):
        try:
            request = read_request(head + client + data)
            SERVED[request.key].read(request)
        except Malformed:
            pass


def test_only_what_is_said_is_served() -> None:
    asked = [(key, version) for key in range(-1, 100) for version in range(-1, 30)]
    assert [each for each in asked if row_of(*each) is not None] == ALL
