"""Where the lake is, and that all callers open the same store."""

from __future__ import annotations

import pickle
from pathlib import Path

import pyarrow.fs as pa_fs
import pytest

from compaction.inputs.place import Place
from tests.minio import Bucket
from uploader.stores.open import StoreUrlError


@pytest.mark.parametrize(
    ("place", "lake"),
    [
        (Place("file:///a%20b/store"), "file:///a b/store/lake"),
        (Place("file:///a/"), "file:///a/lake"),
        (Place("s3://bucket/prefix/"), "s3://bucket/prefix/lake"),
        (Place("s3://bucket"), "s3://bucket/lake"),
        (Place("file:///a", lake_url="file:///tables/"), "file:///tables"),
        (Place("file:///a", lake_url="s3://tables"), "s3://tables"),
    ],
)
def test_tables_are_in_the_store_unless_configured(place: Place, lake: str) -> None:
    assert place.lake == lake
    assert lake.endswith(place.path_of(lake))


def test_a_location_of_another_scheme_is_refused() -> None:
    with pytest.raises(ValueError, match="must begin with file://"):
        Place("file:///a").path_of("s3://bucket/x")


def test_a_lake_url_of_another_scheme_is_refused() -> None:
    with pytest.raises(StoreUrlError, match="ftp://host/x"):
        _ = Place("file:///a", lake_url="ftp://host/x").lake


def test_a_place_travels_and_opens_the_same_store_in_a_process(tmp_path: Path) -> None:
    place = Place(tmp_path.as_uri())
    again = pickle.loads(pickle.dumps(place))
    assert again == place and again.store() is place.store()
    filesystem, base = place.filesystem()
    assert isinstance(filesystem, pa_fs.LocalFileSystem) and base == f"{tmp_path}/lake"
    place.store().close()


def test_a_bucket_is_opened_with_botos_credentials_and_stays_open(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    place = Place(bucket.url, endpoint_url=bucket.endpoint_url)
    filesystem, base = place.filesystem()
    assert base == f"{bucket.bucket}/{bucket.prefix}/lake"
    with filesystem.open_output_stream(f"{base}/x") as sink:
        sink.write(b"written")
    key = f"{bucket.prefix}/lake/x"
    assert bucket.client.get_object(Bucket=bucket.bucket, Key=key)["Body"].read() == b"written"
    assert place.filesystem()[0] is filesystem, "connections are kept"
