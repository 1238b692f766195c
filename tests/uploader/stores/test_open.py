"""From a URL to a store; a wrong URL is refused with the forms that are right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from uploader.stores import StoreUrlError, open_store
from uploader.stores.file import FileStore


def test_a_file_url_opens_the_embedded_store(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/a%20b")
    assert isinstance(store, FileStore)
    assert store.directory == tmp_path / "a b"
    assert store.url == f"file://{tmp_path}/a%20b"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("url", "prefix_url"),
    [("s3://bucket", "s3://bucket"), ("s3://bucket/a/b/", "s3://bucket/a/b")],
)
def test_an_s3_url_opens_a_bucket(url: str, prefix_url: str) -> None:
    store = open_store(url, endpoint_url="http://127.0.0.1:1", region="eu-central-1")
    assert store.url == prefix_url
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/var/lib/headgate",
        "file://relative/dir",
        "file:///",
        "file:///dir?x=1",
        "file:///a%00b",
        "s3://",
        "s3:///prefix",
        "s3://key:secret@bucket/prefix",
        "s3://bucket/prefix#part",
        "gs://bucket/prefix",
        "http://[bucket",
    ],
)
def test_a_url_that_does_not_name_a_store_is_refused_with_the_accepted_forms(url: str) -> None:
    with pytest.raises(StoreUrlError) as caught:
        open_store(url)
    assert repr(url) in str(caught.value)
    assert "file:///absolute/directory" in str(caught.value)
    assert "s3://bucket/prefix" in str(caught.value)


def test_an_endpoint_that_is_not_an_http_url_is_refused() -> None:
    with pytest.raises(StoreUrlError, match=r"'127\.0\.0\.1:9000'"):
        open_store("s3://bucket", endpoint_url="127.0.0.1:9000")


def test_a_store_for_no_thread_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="threads must be at least 1, got 0"):
        open_store(f"file://{tmp_path}", threads=0)


def test_the_embedded_store_does_not_load_boto3(tmp_path: Path) -> None:
    program = (
        "import sys; from uploader.stores import open_store;"
        f"open_store('file://{tmp_path}').check(); print('boto3' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("False\n", "")
