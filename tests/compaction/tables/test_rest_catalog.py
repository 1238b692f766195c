"""The server of a REST catalog has no code run here, and gets no credentials sent elsewhere."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from compaction.tables.errors import LakeError
from compaction.tables.fileio import LakeFileIO
from compaction.tables.lake import Lake, live_files
from tests.compaction.lakes import Book, compacted, place_in, rows, topic
from tests.compaction.named_code import CALLS

NAME = "headgate.orders"
CODE = "tests.compaction.named_code.called"
RUNS_CODE = {"type": "custom", "impl": CODE, "custom": {}}


class Server:
    """What a REST catalog answers by path, and what it was asked with which headers."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {
            "/v1/config": {"defaults": {}, "overrides": {}},
            "/v1/namespaces/headgate": {"namespace": ["headgate"], "properties": {}},
        }
        self.asked: list[tuple[str, str]] = []
        self.uri = ""

    @contextmanager
    def serving(self) -> Iterator[Server]:
        told = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                told.asked.append((path, self.headers.get("Authorization", "")))
                found = told.answers.get(path)
                body = json.dumps(found or {"error": {"message": "no", "type": "x", "code": 404}})
                self.send_response(200 if found else 404)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body.encode())

            do_HEAD = do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None:
                return

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            self.uri = f"http://127.0.0.1:{server.server_port}"
            thread = threading.Thread(target=server.serve_forever, args=(0.01,))
            thread.start()
            try:
                yield self
            finally:
                server.shutdown()
                thread.join()


@pytest.fixture
def server() -> Iterator[Server]:
    CALLS.clear()
    with Server().serving() as made:
        yield made
    assert not CALLS, "the server of the catalog had code run"


def opened(server: Server, directory: Path) -> Lake:
    return Lake(place_in(directory), {"uri": server.uri, "token": "ours"})


@pytest.mark.parametrize("kind", ["defaults", "overrides"])
@pytest.mark.parametrize(
    ("name", "value"),
    [("auth", RUNS_CODE), ("py-io-impl", CODE), ("py-catalog-impl", CODE),
     ("ssl", {"cabundle": "/nowhere"}), ("header.x", "y"), ("token", "theirs")],
)  # fmt: skip
def test_a_setting_that_the_server_tells_changes_nothing_here(
    server: Server, tmp_path: Path, kind: str, name: str, value: object
) -> None:
    server.answers["/v1/config"][kind][name] = value
    with opened(server, tmp_path) as lake:
        assert name not in lake.catalog.properties or lake.catalog.properties[name] != value
    assert server.asked[-1] == ("/v1/namespaces/headgate", "Bearer ours")


@pytest.mark.parametrize("name", ["uri", "oauth2-server-uri", "rest.authorization-url"])
def test_credentials_go_to_no_address_that_the_server_tells(
    server: Server, tmp_path: Path, name: str
) -> None:
    with Server().serving() as other:
        server.answers["/v1/config"]["overrides"][name] = other.uri
        opened(server, tmp_path).close()
        assert other.asked == []
    assert server.asked[-1] == ("/v1/namespaces/headgate", "Bearer ours")


def test_how_the_server_is_spoken_to_it_tells(server: Server, tmp_path: Path) -> None:
    server.answers["/v1/config"]["overrides"]["prefix"] = "shop"
    server.answers["/v1/shop/namespaces/headgate"] = server.answers["/v1/namespaces/headgate"]
    opened(server, tmp_path).close()
    assert server.asked[-1][0] == "/v1/shop/namespaces/headgate"


def serve_table(server: Server, lake: Lake, config: dict[str, str], **planted: str) -> None:
    """The table that a lake has, as the server tells it."""
    location = lake.locations()[NAME]
    assert location is not None
    metadata = json.loads(Path(location.removeprefix("file://")).read_text())
    metadata["properties"].update(planted)
    told = {"metadata-location": location, "metadata": metadata, "config": config}
    server.answers["/v1/namespaces/headgate/tables/orders"] = told
    listed = {"identifiers": [{"namespace": ["headgate"], "name": "orders"}]}
    server.answers["/v1/namespaces/headgate/tables"] = listed


@pytest.mark.parametrize("name", ["py-io-impl", "write.py-location-provider.impl", "s3.endpoint"])
def test_a_tables_settings_from_the_server_choose_neither_code_nor_store(
    server: Server, lake: Lake, book: Book, tmp_path: Path, name: str
) -> None:
    compacted(lake, book, topic(), "run1", rows(0, 1, 3))
    serve_table(server, lake, {name: CODE})
    with opened(server, tmp_path) as shared:
        loaded = shared.load_existing(NAME)
        assert isinstance(loaded.io, LakeFileIO)
        assert len(list(live_files(loaded))) == 1
    serve_table(server, lake, {}, **{name: CODE})
    with opened(server, tmp_path) as shared, pytest.raises(LakeError, match="may name code"):
        shared.load_existing(NAME)
