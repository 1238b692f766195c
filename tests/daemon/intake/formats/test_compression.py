"""Compressed bodies come out whole, or are refused, and a bomb stays small."""

from __future__ import annotations

import gzip
import tracemalloc
import zlib
from collections.abc import Callable

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from daemon.intake.formats import decompress
from daemon.schemas.errors import ApiError

LIMIT = 1 << 20


def zstd_streamed(body: bytes) -> bytes:
    """As Vector sends it: the frame does not say how long its content is."""
    stream = zstandard.ZstdCompressor().compressobj()
    return stream.compress(body) + stream.flush()


COMPRESSORS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "zstd": ("zstd", zstandard.ZstdCompressor().compress),
    "zstd-streamed": ("zstd", zstd_streamed),
}
each_compressor = pytest.mark.parametrize(
    ("encoding", "compress"), COMPRESSORS.values(), ids=list(COMPRESSORS)
)
bodies = st.binary() | st.builds(lambda b, n: b * n, st.binary(max_size=50), st.integers(0, 9000))


def refused(body: bytes, encoding: str, limit: int = LIMIT) -> ApiError:
    with pytest.raises(ApiError) as caught:
        decompress(body, encoding, limit)
    return caught.value


@each_compressor
@given(body=bodies)
def test_a_body_comes_out_as_it_went_in(
    encoding: str, compress: Callable[[bytes], bytes], body: bytes
) -> None:
    assert decompress(compress(body), encoding, LIMIT) == body


@pytest.mark.parametrize("encoding", ["gzip", "zstd", "zstd-streamed"])
@given(parts=st.lists(bodies, min_size=1, max_size=5))
def test_members_that_were_appended_come_out_in_order(encoding: str, parts: list[bytes]) -> None:
    name, compress = COMPRESSORS[encoding]
    body = b"".join(map(compress, parts))
    assert decompress(body, name, 5 * LIMIT) == b"".join(parts)


@each_compressor
def test_a_body_of_exactly_the_limit_is_taken_and_one_byte_more_is_not(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    assert len(decompress(compress(b"x" * LIMIT), encoding, LIMIT)) == LIMIT
    error = refused(compress(b"x" * (LIMIT + 1)), encoding)
    assert (error.status, error.detail) == (413, {"limit_bytes": LIMIT})


@each_compressor
@given(data=st.data(), body=st.binary(max_size=3000))
def test_a_truncated_body_is_400(
    encoding: str, compress: Callable[[bytes], bytes], data: st.DataObject, body: bytes
) -> None:
    whole = compress(body)
    cut = data.draw(st.integers(0, len(whole) - 1))
    assert refused(whole[:cut], encoding).status == 400


@each_compressor
def test_garbage_before_or_after_is_400(encoding: str, compress: Callable[[bytes], bytes]) -> None:
    whole = compress(b"hello")
    assert refused(b"garbage", encoding).status == 400
    assert refused(whole + b"garbage", encoding).status == 400


@each_compressor
def test_a_bomb_takes_no_more_memory_than_the_limit_and_a_piece(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    bomb = compress(b"\0" * (20 * LIMIT))
    tracemalloc.start()
    error = refused(bomb, encoding)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert error.status == 413
    assert peak < LIMIT + 128 * 1024


@pytest.mark.parametrize("encoding", ["gzip", "zstd"])
def test_a_crowd_of_empty_members_is_400(encoding: str) -> None:
    name, compress = COMPRESSORS[encoding]
    assert refused(compress(b"") * 10_000, name).status == 400


def test_a_zstd_window_over_8_mib_is_400() -> None:
    parameters = zstandard.ZstdCompressionParameters(window_log=27)
    stream = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
    assert refused(stream.compress(b"x" * 1000) + stream.flush(), "zstd").status == 400


def test_no_encoding_is_no_work_and_an_unknown_one_is_415() -> None:
    body = b"as it is"
    assert decompress(body, "", 1) is body
    assert refused(body, "br").status == 415
