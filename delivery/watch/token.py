"""``wid``: what a stream of several topics watches, as text.

The text is all there is. Any shard serves it, no restart forgets it, and a watch that is never
opened costs nothing.

    base64url( version u8 | crc32c of the rest u32 | msgpack of a WatchSpec )

The checksum finds a text that was cut or retyped. It is not a secret: a client that writes a
``wid`` gets what ``POST /v0/watch`` would have given it, so everything in it is checked again.
"""

from __future__ import annotations

import binascii
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from delivery.filters import Filter, FilterError
from ledger.types import INTEGER_MAX
from shards.checksum import crc32c

VERSION = 1
PLACES_MAX = 64  # partitions of one stream
WID_CHARACTERS_MAX = 4_096  # a request's line must fit into limits of proxies, 8 KB as a rule
_HEAD = struct.Struct("<BI")

_Number = Annotated[int, Meta(ge=0, le=INTEGER_MAX)]


class WidError(ValueError):
    """A text that is not a ``wid``, or what would be too long for one."""


class WatchPlace(Struct, frozen=True, array_like=True):
    """A topic, or one partition of it, and where to begin: after an offset, at a time, or with
    neither at the head."""

    topic_id: Annotated[int, Meta(ge=1, le=INTEGER_MAX)]
    partition: _Number | None = None
    from_seq: _Number | None = None
    from_ts: _Number | None = None


class WatchSpec(Struct, frozen=True, array_like=True):
    """What a stream watches."""

    places: Annotated[tuple[WatchPlace, ...], Meta(min_length=1, max_length=PLACES_MAX)]
    tag: str | None = None
    node: str | None = None
    key: str | None = None

    @property
    def filter(self) -> Filter:
        return Filter(self.tag, self.node, self.key)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(WatchSpec)


def encode_wid(spec: WatchSpec) -> str:
    """The ``wid`` of what is watched. Raises WidError if it would be too long."""
    body = _encoder.encode(spec)
    wid = urlsafe_b64encode(_HEAD.pack(VERSION, crc32c(body)) + body).rstrip(b"=").decode()
    if len(wid) > WID_CHARACTERS_MAX:
        raise WidError(
            f"{len(spec.places)} topics and filters of {len(spec.tag or '')},"
            f" {len(spec.node or '')} and {len(spec.key or '')} characters make a wid of"
            f" {len(wid)} characters, the limit is {WID_CHARACTERS_MAX}; shorten the filters"
        )
    return wid


def decode_wid(wid: str) -> WatchSpec:
    """The inverse of ``encode_wid``. Raises WidError."""
    if len(wid) > WID_CHARACTERS_MAX:
        raise WidError(f"a wid has at most {WID_CHARACTERS_MAX} characters, got {len(wid)}")
    try:
        data = urlsafe_b64decode(wid.encode("ascii") + b"=" * (-len(wid) % 4))
        version, checksum = _HEAD.unpack_from(data)
        body = data[_HEAD.size :]
        if version != VERSION:
            raise WidError(
                f"the wid is of version {version}, this daemon knows {VERSION}; get another one"
                " with POST /v0/watch"
            )
        # A second spelling of the same bytes was not made here.
        if checksum != crc32c(body) or urlsafe_b64encode(data).rstrip(b"=") != wid.encode():
            raise _damaged(wid)
        spec = _decoder.decode(body)
        spec.filter.check()
    except (
        binascii.Error,
        struct.error,
        msgspec.DecodeError,
        UnicodeDecodeError,
        UnicodeEncodeError,
    ) as error:
        raise _damaged(wid) from error
    except FilterError as error:
        raise WidError(f"the wid has a filter that cannot be used: {error}") from error
    if any(each.from_seq is not None and each.from_ts is not None for each in spec.places):
        raise _damaged(wid)
    return spec


def _damaged(wid: str) -> WidError:
    return WidError(
        f"{wid[:40]!r} is not a wid that POST /v0/watch returned, or only a part of one"
    )
