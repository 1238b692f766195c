"""A catalog or lake that cannot be used is named in one sentence, with what to do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from compaction.inputs.place import Place
from compaction.tables.catalog import open_catalog
from compaction.tables.errors import LakeUnusable
from compaction.tables.lake import Lake
from compaction.tables.prepare import prepare_table
from tests.compaction.lakes import Book, catalog_properties, compacted, place_in, rows, topic
from tests.minio import Bucket, Minio


@contextmanager
def rest_server(status: int, kind: str) -> Iterator[str]:
    """A REST catalog that answers everything with an error."""

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = f'{{"error":{{"message":"no","type":"{kind}","code":{status}}}}}'.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Refuses)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def refused(place: Place, properties: dict[str, str], name: str | None = None) -> str:
    with pytest.raises(LakeUnusable) as caught:
        open_catalog(place, properties, name)
    assert caught.value.hint and "\n" not in str(caught.value)
    return str(caught.value)


def test_the_folder_of_the_default_catalog_must_be_there(tmp_path: Path) -> None:
    said = refused(place_in(tmp_path), {"uri": f"sqlite:///{tmp_path}/none/catalog.db"})
    assert f"there is no folder {tmp_path}/none" in said and "make it" in said


def test_a_file_that_is_no_catalog_is_named(tmp_path: Path) -> None:
    (tmp_path / "catalog.db").write_bytes(b"not a database at all, but long enough to be read" * 9)
    said = refused(place_in(tmp_path), catalog_properties(tmp_path))
    assert "not a database" in said and f"{tmp_path}/catalog.db" in said


def test_a_name_that_no_configuration_has_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    said = refused(place_in(tmp_path), {}, "nowhere")
    assert "the catalog 'nowhere' is not configured" in said and "`catalog_uri`" in said


def test_an_address_without_a_listener_is_named(tmp_path: Path) -> None:
    said = refused(place_in(tmp_path), {"uri": "http://127.0.0.1:1"})
    assert "the catalog at http://127.0.0.1:1 cannot be used" in said


@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (401, "NotAuthorizedException", "refuses the credentials"),
        (403, "ForbiddenException", "access is denied"),
        (503, "ServiceUnavailableException", "cannot be used"),
    ],
)
def test_what_a_rest_catalog_answers_is_told(
    tmp_path: Path, status: int, kind: str, words: str
) -> None:
    with rest_server(status, kind) as uri:
        said = refused(place_in(tmp_path), {"uri": uri, "token": "wrong"})
    assert words in said and uri in said and "wrong" not in said


def test_a_password_in_an_address_is_not_told(tmp_path: Path) -> None:
    said = refused(place_in(tmp_path), {"uri": "postgresql+nodriver://me:secret@127.0.0.1:1/x"})
    assert "secret" not in said and "me:***@127.0.0.1" in said


@pytest.mark.parametrize(
    "uri",
    ["postgresql+nodriver://me:se/cret@127.0.0.1:1/x", "postgresql+nodriver://h/x?password=se/cret",
     "nothing://me:se/cret@h", "http://127.0.0.1:1/v1?token=se/cret"],
)  # fmt: skip
def test_no_secret_of_an_address_is_told(tmp_path: Path, uri: str) -> None:
    said = refused(place_in(tmp_path), {"uri": uri})
    assert "cret" not in said and "***" in said


def test_a_lake_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    # Root may write everywhere, but no user can make a folder in a file.
    (tmp_path / "store").write_text("in the way")
    with (
        Lake(place_in(tmp_path), catalog_properties(tmp_path)) as lake,
        pytest.raises(LakeUnusable, match=r"the table headgate\.orders in file://"),
    ):
        prepare_table(lake, topic(), None, {})


def test_a_store_with_the_wrong_keys_is_named(
    tmp_path: Path, minio: Minio, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", bucket.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret")
    place = Place(bucket.url, endpoint_url=minio.endpoint_url, region=bucket.region)
    with (
        Lake(place, catalog_properties(tmp_path)) as lake,
        pytest.raises(LakeUnusable, match="access is denied"),
    ):
        prepare_table(lake, topic(), None, {})


def test_a_catalog_of_pyicebergs_own_configuration_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, book: Book
) -> None:
    (tmp_path / "own").mkdir()
    from pyiceberg.catalog import _ENV_CONFIG  # read once, when it is imported

    monkeypatch.setattr(_ENV_CONFIG, "config", {"catalog": {"mine": {
        "type": "sql", "uri": f"sqlite:///{tmp_path}/own/mine.db"}}})  # fmt: skip
    with Lake(place_in(tmp_path), {}, "mine") as lake:
        compacted(lake, book, topic(), "run1", rows(0, 1, 2))
    assert (tmp_path / "own" / "mine.db").exists()


def test_closing_the_last_lake_leaves_no_threads(tmp_path: Path, book: Book) -> None:
    before = {*threading.enumerate()}
    first = Lake(place_in(tmp_path), catalog_properties(tmp_path))
    second = Lake(place_in(tmp_path), catalog_properties(tmp_path))
    compacted(first, book, topic(), "run1", rows(0, 1, 2))
    first.close()
    compacted(second, book, topic(), "run2", rows(0, 3, 4))
    second.close()
    assert {*threading.enumerate()} <= before
