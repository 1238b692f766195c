"""The S3 store against a real MinIO."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from crc32c import crc32c

from tests.minio import Bucket
from tests.uploader.stores.http_stores import resetting_proxy
from uploader.stores import open_store
from uploader.stores.base import (
    ForeignObject,
    ObjectMissing,
    ObjectStore,
    PartedStore,
    StoreError,
    StoreRefused,
)


@pytest.fixture
def credentials(bucket: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def store(bucket: Bucket, credentials: None) -> Iterator[PartedStore]:
    opened = open_store(bucket.url, endpoint_url=bucket.endpoint_url)
    yield opened
    opened.close()


def put(store: ObjectStore, key: str, body: bytes) -> str:
    return store.put(key, body, crc32c(body))


def keys(store: ObjectStore, prefix: str = "", start_after: str = "") -> list[str]:
    return [head.key for head in store.list(prefix, start_after)]


def test_an_object_is_read_whole_and_in_ranges(store: ObjectStore, bucket: Bucket) -> None:
    locator = put(store, "l0/1", b"0123456789")
    assert locator == "l0/1"
    assert store.get(locator) == b"0123456789"
    assert store.get(locator, 3) == b"3456789"
    assert store.get(locator, 0, 4) == b"0123"
    assert store.get(locator, 8, 100) == b"89"
    assert store.get(locator, 3, 0) == b""
    empty = put(store, "l0/2", b"")
    assert store.get(empty) == store.get(empty, 0, 4) == b""
    stored = bucket.client.get_object(Bucket=bucket.bucket, Key="prefix/l0/1")["Body"]
    with stored:
        assert stored.read() == b"0123456789"


def test_a_read_after_the_end_is_refused(store: ObjectStore) -> None:
    locator = put(store, "l0/1", b"0123456789")
    with pytest.raises(StoreError, match="416") as caught:
        store.get(locator, 10)
    assert not caught.value.retryable
    with pytest.raises(ValueError, match="start -1"):
        store.get(locator, -1)


def test_an_object_that_never_existed_is_missing(store: ObjectStore) -> None:
    with pytest.raises(ObjectMissing, match="l0/none"):
        store.get("l0/none")


def test_a_second_put_of_the_same_object_is_a_success(store: ObjectStore) -> None:
    body = os.urandom(100_000)
    assert put(store, "l0/1", body) == put(store, "l0/1", body) == "l0/1"


@pytest.mark.parametrize("other", [b"other!", b"of another length"])
def test_a_key_that_holds_another_object_is_foreign_and_not_overwritten(
    store: ObjectStore, other: bytes
) -> None:
    put(store, "l0/1", b"first!")
    with pytest.raises(ForeignObject, match="l0/1 is taken by another object") as caught:
        put(store, "l0/1", other)
    assert not caught.value.retryable
    assert store.get("l0/1") == b"first!"


def test_an_object_without_a_stored_crc32c_is_compared_by_its_bytes(
    store: ObjectStore, bucket: Bucket
) -> None:
    bucket.client.put_object(Bucket=bucket.bucket, Key="prefix/l0/1", Body=b"copied")
    head = bucket.client.head_object(
        Bucket=bucket.bucket, Key="prefix/l0/1", ChecksumMode="ENABLED"
    )
    assert head.get("ChecksumCRC32C", "") == ""
    assert put(store, "l0/1", b"copied") == "l0/1"
    with pytest.raises(ForeignObject):
        put(store, "l0/1", b"differ")


def test_a_body_damaged_on_the_way_is_not_kept_and_is_retried(
    store: ObjectStore,
) -> None:
    with pytest.raises(StoreError, match=r"XAmzContentChecksumMismatch|BadDigest") as caught:
        store.put("l0/1", b"body", crc32c(b"another"))
    assert caught.value.retryable
    assert keys(store) == []


def test_the_store_keeps_the_checksum_that_it_was_given(store: ObjectStore, bucket: Bucket) -> None:
    store.put("l0/1", b"123456789", 0xE3069283)
    head = bucket.client.head_object(
        Bucket=bucket.bucket, Key="prefix/l0/1", ChecksumMode="ENABLED"
    )
    assert head["ChecksumCRC32C"] == "4waSgw=="


def test_a_put_whose_answer_was_lost_is_put_again_without_harm(
    store: ObjectStore, bucket: Bucket
) -> None:
    body = os.urandom(300_000)
    with resetting_proxy(bucket.endpoint_url) as endpoint_url:
        broken = open_store(bucket.url, endpoint_url=endpoint_url)
        with pytest.raises(StoreError) as caught:
            put(broken, "l0/1", body)
        broken.close()
    assert (caught.value.retryable, caught.value.outcome_unknown) == (True, True)
    assert store.get("l0/1") == body
    before = bucket.client.head_object(Bucket=bucket.bucket, Key="prefix/l0/1")["LastModified"]
    assert put(store, "l0/1", body) == "l0/1"
    after = bucket.client.head_object(Bucket=bucket.bucket, Key="prefix/l0/1")["LastModified"]
    assert (keys(store), after) == (["l0/1"], before)


def test_of_racing_puts_under_one_key_one_is_kept_and_equal_ones_all_succeed(
    store: ObjectStore,
) -> None:
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda _: put(store, "l0/1", b"same"), range(8))) == ["l0/1"] * 8
        made = list(pool.map(lambda n: store.put_if_absent("ledger/1/1", b"%d" % n), range(8)))
    assert made.count(True) == 1
    assert store.get("ledger/1/1") == b"%d" % made.index(True)


def test_an_entry_is_made_once(store: ObjectStore) -> None:
    assert store.put_if_absent("ledger/7/1", b"first")
    assert not store.put_if_absent("ledger/7/1", b"first")
    assert not store.put_if_absent("ledger/7/1", b"second")
    assert store.get("ledger/7/1") == b"first"


@pytest.mark.slow
def test_listing_and_deleting_continue_after_a_thousand(store: ObjectStore) -> None:
    names = [f"l0/{n:04}" for n in range(1_005)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda name: put(store, name, b"x"), names))
    put(store, "m/other", b"y")
    assert keys(store, "l0/") == names
    assert keys(store, "l0/", "l0/1002") == names[1003:]
    assert keys(store, "none/") == []
    head = next(iter(store.list("m/")))
    assert (head.key, head.locator, head.size_bytes) == ("m/other", "m/other", 1)
    assert head.modified_ms > 1_700_000_000_000
    store.delete([*names, "l0/none"])
    assert keys(store) == ["m/other"]
    store.delete([])


def test_a_store_without_a_prefix_is_the_whole_bucket(bucket: Bucket, credentials: None) -> None:
    store = open_store(f"s3://{bucket.bucket}", endpoint_url=bucket.endpoint_url)
    put(store, "l0/1", b"x")
    assert keys(store) == ["l0/1"]
    store.close()


def test_check_accepts_minio_and_leaves_no_probe(store: ObjectStore) -> None:
    store.check()
    store.check()
    assert keys(store) == []


def test_a_bucket_that_is_missing_is_refused_by_name(bucket: Bucket, credentials: None) -> None:
    store = open_store("s3://no-such-bucket/x", endpoint_url=bucket.endpoint_url)
    for call in (store.check, lambda: put(store, "l0/1", b""), lambda: keys(store)):
        with pytest.raises(StoreRefused, match="no bucket 'no-such-bucket'") as caught:
            call()
        assert bucket.endpoint_url in str(caught.value)
        assert "create it" in str(caught.value)
    store.close()


def test_credentials_that_are_wrong_are_refused_by_name(
    bucket: Bucket, credentials: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not the secret")
    store = open_store(bucket.url, endpoint_url=bucket.endpoint_url)
    for call in (store.check, lambda: put(store, "l0/1", b"")):
        with pytest.raises(StoreRefused, match="forbidden") as caught:
            call()
        assert bucket.url in str(caught.value)
        assert "AWS_ACCESS_KEY_ID" in str(caught.value)
    store.close()


PART = bytes(range(256)) * (5 << 12)  # 5 MiB, the least that S3 takes


def unfinished(bucket: Bucket, key: str) -> int:
    found = bucket.client.list_multipart_uploads(Bucket=bucket.bucket, Prefix=f"prefix/{key}")
    return len(found.get("Uploads", []))


def test_an_object_in_parts_is_invisible_until_it_is_finished(
    store: PartedStore, bucket: Bucket
) -> None:
    key = "ledger/7/image-1"
    made = store.put_in_parts(key)
    made.put(PART)
    made.put(b"second")
    assert keys(store, "ledger/") == [] and unfinished(bucket, key) == 1
    made.finish()
    (head,) = store.list("ledger/")
    assert (head.key, head.size_bytes) == (key, len(PART) + 6)
    assert store.get(head.locator, len(PART) - 2, 6) == PART[-2:] + b"seco"
    assert crc32c(store.get(head.locator)) == crc32c(PART + b"second")
    # The answer to its end may have been lost: it is asked for again.
    made.finish()


def test_an_object_in_parts_that_is_given_up_leaves_nothing(
    store: PartedStore, bucket: Bucket
) -> None:
    key = "ledger/7/image-1"
    store.put_in_parts(key).abandon()
    made = store.put_in_parts(key)
    made.put(PART)
    made.abandon()
    made.abandon()
    assert unfinished(bucket, key) == 0
    with pytest.raises(StoreError):
        made.finish()
    assert keys(store, "ledger/") == []


def test_parts_of_dead_writers_are_discarded(store: PartedStore, bucket: Bucket) -> None:
    key = "ledger/7/image-1"
    for _ in range(2):
        store.put_in_parts(key).put(PART)
    assert unfinished(bucket, key) == 2
    assert store.discard_unfinished(key) == 2
    assert unfinished(bucket, key) == 0 and store.discard_unfinished(key) == 0
