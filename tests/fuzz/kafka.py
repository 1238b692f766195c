"""The same for Kafka's protocol: frames that are right, and frames that are wrong somewhere.

A valid request of any key is made from Kafka's own description of it (kio), with odd values. The
records of a Produce carry marks; each of its batches is judged as a request of its own. A stream
of valid requests that do not wait for anybody gets all its answers, in order, before the fuzzer
closes its direction; after any other, the daemon has to close the connection.

With tokens, a stream begins with an exchange, which often goes wrong or is left out: then nothing
of the stream may be stored.
"""

from __future__ import annotations

import gzip
import io
import random
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import fields, is_dataclass
from datetime import timedelta
from typing import Any, ClassVar, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

import pyarrow
import zstandard
from confluent_kafka.admin import AdminClient
from kio.index import load_request_schema, load_response_schema
from kio.serial import entity_reader, entity_writer

from daemon.kafka.served import SERVED
from shards.checksum import crc32c
from tests.daemon.kafka.frames import Key, authenticate, blob, handshake, plain
from tests.e2e.daemon import HANG_S, Daemon
from tests.e2e.kafka import bootstrap
from tests.e2e.secured import Secured
from tests.fuzz.inputs import RECORD_TOPICS, Sent, mark_of
from tests.fuzz.judge import UNKNOWN, Said
from tests.fuzz.run import PULSES_MAX, Hunt, Options
from uploader.l0.kafka import CRC_FROM, HEAD_BYTES, KafkaRecord, encode_batch, seal

WAITING = (Key.FETCH, Key.JOIN_GROUP, Key.SYNC_GROUP)  # for other clients, or for a time
TIMEOUT = timedelta(seconds=30)
_SHORT_WAITS: dict[str, Any] = {
    "max_wait": timedelta(milliseconds=100), "session_timeout": timedelta(seconds=1),
    "rebalance_timeout": timedelta(seconds=1),
}  # fmt: skip
REFUSED = 400  # how the judgement knows an error code
_TEXTS = ("", "x", "a.b", "kafka-a", "kafka-b", "é", "\0", "a/b", "__x", "x" * 249, "y" * 300)
_BYTES = (b"", b"\0", b"\xff" * 9, b"x" * 2_000)
_WIDTHS = {"i8": 8, "i16": 16, "i32": 32, "i64": 64}
_CODECS: dict[int, Callable[[bytes], bytes]] = {
    1: gzip.compress,
    2: lambda data: bytes(pyarrow.Codec("snappy").compress(data, asbytes=True)),
    4: lambda data: zstandard.ZstdCompressor().compress(data),
}


class Opening(NamedTuple):
    """What comes before the requests, and how many answers it has if the client is ``allowed``
    anything after it."""

    data: bytes = b""
    answers: int = 0
    allowed: bool = True


class Batch(NamedTuple):
    """A batch of a Produce; ``exact``: its records are as made."""

    topic: str
    unit: int
    marks: int
    data: bytes
    exact: bool = True


class Frame(NamedTuple):
    """One request with its length; ``framed``: it is the one that it seems to be."""

    key: int
    version: int
    correlation: int
    data: bytes
    batches: tuple[Batch, ...] = ()
    framed: bool = True
    is_answered: bool = True


def odd(rng: random.Random, asked: Any, depth: int = 0) -> Any:
    """A value of a field of kio's."""
    if get_origin(asked) is tuple:
        count = rng.choice((0, 1, 1, 2, 5)) if depth < 4 else 0
        return tuple(odd(rng, get_args(asked)[0], depth + 1) for _ in range(count))
    options = [each for each in get_args(asked) if each is not type(None)]
    if options:  # it may be null
        return None if rng.random() < 0.2 else odd(rng, options[0], depth)
    if is_dataclass(asked):
        return entity(rng, asked, depth)
    if asked is bool:
        return rng.random() < 0.5
    if asked is UUID:
        return UUID(int=rng.choice((0, 1, rng.getrandbits(128))))
    if issubclass(asked, str):
        return rng.choice(_TEXTS)
    if issubclass(asked, bytes):
        return rng.choice(_BYTES)
    if issubclass(asked, timedelta):
        return timedelta(milliseconds=rng.choice((-1, 0, 1, 100, 6_000, 2**31 - 1)))
    most = 2 ** (min(_WIDTHS.get(each.__name__, 64) for each in asked.__mro__) - 1)
    return max(-most, min(most - 1, rng.choice((-(2**63), -2, -1, 0, 0, 1, 2, 100, 2**63))))


def entity(rng: random.Random, schema: Any, depth: int = 0, /, **given: Any) -> Any:
    """A message or a part of one; ``given`` are fields whose values are not by chance."""
    hints = get_type_hints(schema)
    return schema(
        **{
            each.name: given[each.name] if each.name in given else odd(rng, hints[each.name], depth)
            for each in fields(schema)
        }
    )


def framed(key: int, version: int, correlation: int, body: Any) -> bytes:
    """A request as a client sends it."""
    header_schema = type(body).__header_schema__
    values = {
        "request_api_key": key, "request_api_version": version, "correlation_id": correlation,
        "client_id": "fuzz",
    }  # fmt: skip
    known = {each.name for each in fields(header_schema)}
    buffer = io.BytesIO()
    entity_writer(header_schema)(
        buffer, header_schema(**{name: values[name] for name in known & set(values)})
    )
    entity_writer(type(body))(buffer, body)
    return sized(buffer.getvalue())


def sized(frame: bytes) -> bytes:
    """With its length."""
    return len(frame).to_bytes(4, "big") + frame


class Maker:
    """Makes one stream; everything follows from ``rng``."""

    def __init__(self, rng: random.Random, number: int, topics: Sequence[str]) -> None:
        self._rng = rng
        self._topics = topics
        self._number = number
        self._units = 0
        self._producer = (rng.getrandbits(62), 0, 0) if rng.random() < 0.4 else (-1, -1, -1)
        self._last: Batch | None = None

    def frames(self) -> list[Frame]:
        """Some requests; from one that is wrong on, none is ``framed``."""
        rng, made, right = self._rng, [], True
        for correlation in range(rng.choice((1, 2, 3, 8, 12))):
            key = Key.PRODUCE if rng.random() < 0.4 else rng.choice(list(SERVED))
            version = rng.randint(SERVED[key].versions.oldest, SERVED[key].versions.newest)
            if key == Key.PRODUCE:
                frame = self._produce(version, correlation)
            else:
                schema = load_request_schema(key, version)
                body = entity(rng, schema, **(_SHORT_WAITS if key in WAITING else {}))
                frame = Frame(key, version, correlation, framed(key, version, correlation, body))
            if rng.random() < 0.12:
                frame, right = self._damaged(frame), False
            made.append(frame._replace(framed=right))
        return made

    def _produce(self, version: int, correlation: int) -> Frame:
        rng = self._rng
        schema = load_request_schema(Key.PRODUCE, version)
        topics = get_args(get_type_hints(schema)["topic_data"])[0]
        parts = get_args(get_type_hints(topics)["partition_data"])[0]
        batches = [self._batch(rng.choice(self._topics)) for _ in range(rng.choice((1, 1, 1, 3)))]
        acks = rng.choice((-1, -1, -1, 1, 0))
        body = entity(
            rng, schema, transactional_id=None, acks=acks, timeout=TIMEOUT,
            topic_data=tuple(
                topics(name=each.topic, partition_data=(parts(index=0, records=each.data),))
                for each in batches
            ),
        )  # fmt: skip
        data = framed(Key.PRODUCE, version, correlation, body)
        return Frame(Key.PRODUCE, version, correlation, data, tuple(batches), is_answered=acks != 0)

    def _batch(self, topic: str) -> Batch:
        rng, last = self._rng, self._last
        producer_id, epoch, sequence = self._producer
        if last is not None and producer_id >= 0 and rng.random() < 0.2:
            return last._replace(unit=self._unit(), marks=0, exact=False)
        unit, count = self._unit(), rng.choice((1, 1, 2, 10, 100, 1_001))
        records = [
            KafkaRecord(
                rng.choice((0, 1_700_000_000_000)), rng.choice((None, b"k", b"\xff")),
                (mark_of(self._number, unit, each) + "x" * rng.choice((0, 10, 500))).encode(),
                (("h", b"v"), ("h", None)) if rng.random() < 0.2 else (),
            )
            for each in range(count)
        ]  # fmt: skip
        data = encode_batch(0, list(enumerate(records)))
        self._producer = (producer_id, epoch, sequence + count if producer_id >= 0 else -1)
        times, payload = (0, 1_700_000_000_000), data[HEAD_BYTES:]
        codec = rng.choice((0, 0, 0, *_CODECS))
        if codec:
            payload = _CODECS[codec](payload)
        base = int.from_bytes(data[27:35], "big")
        data = seal(0, codec, count - 1, (base, times[1]), (producer_id, epoch, sequence), count,
                    payload)  # fmt: skip
        made = Batch(topic, unit, count, data)
        if rng.random() < 0.25:
            return self._spoiled(made)
        self._last = made if producer_id >= 0 else None
        return made

    def _unit(self) -> int:
        self._units += 1
        return self._units

    def _spoiled(self, batch: Batch) -> Batch:
        """A batch that is wrong, often with a right checksum."""
        rng, data = self._rng, bytearray(batch.data)
        kind = rng.randrange(5)
        if kind == 0:  # a bomb
            payload = _CODECS[rng.choice((1, 4))](bytes(40_000_000))
            spoiled = seal(0, 1, 9, (0, 0), (-1, -1, -1), 10, payload)
        elif kind == 1:
            spoiled = bytes(data[: rng.randrange(len(data))])
        else:
            for _ in range(rng.choice((1, 1, 3, 20))):
                at = rng.randrange(0 if kind == 2 else CRC_FROM, len(data))
                data[at] = rng.randrange(256)
            spoiled = bytes(data) if kind == 2 else seal_again(bytes(data))
        return batch._replace(data=spoiled, exact=False)

    def _damaged(self, frame: Frame) -> Frame:
        rng, data = self._rng, bytearray(frame.data)
        kind = rng.randrange(6)
        if kind == 0:
            data = data[: rng.randrange(len(data))]
        elif kind == 1:
            data[:4] = rng.choice((0, 1, 5, 2**20, 2**31 - 1, 2**32 - 1)).to_bytes(4, "big")
        elif kind == 2:  # the right length, but an end too early
            data = bytearray(sized(bytes(data[4 : rng.randrange(5, len(data) + 1)])))
        elif kind == 3:
            data = bytearray(sized(bytes(rng.randrange(256) for _ in range(rng.randrange(60)))))
        elif kind == 4:
            key, version = rng.randrange(-1, 90), rng.randrange(-1, 20)
            data[4:8] = (key % 2**16).to_bytes(2, "big") + (version % 2**16).to_bytes(2, "big")
        else:
            for _ in range(rng.choice((1, 2, 10))):
                data[rng.randrange(8, len(data))] = rng.randrange(256)
        return frame._replace(data=bytes(data), batches=tuple(
            each._replace(exact=False) for each in frame.batches
        ))  # fmt: skip


def opening_of(rng: random.Random, tokens: Sequence[str]) -> Opening:
    """An exchange, right more often than not; none without tokens."""
    if not tokens:
        return Opening()
    right = authenticate(plain(tokens[0]))
    kind = rng.randrange(12)
    if kind > 5:
        return Opening(handshake() + right, 2)
    wrong = plain(tokens[0][:-1] + "x")
    return Opening(
        (
            b"",
            handshake(),
            right,
            handshake() + authenticate(wrong),
            handshake(version=0) + blob(wrong),
            handshake("SCRAM-SHA-256") + right,
        )[kind],
        allowed=False,
    )


def seal_again(batch: bytes) -> bytes:
    """With the checksum and the length that its bytes have."""
    found = bytearray(batch)
    found[8:12] = (len(found) - 12).to_bytes(4, "big")
    found[17:21] = crc32c(bytes(found[CRC_FROM:])).to_bytes(4, "big")
    return bytes(found)


class KafkaHunt(Hunt):
    """Sends streams of Kafka's requests to all shards."""

    SETTINGS: ClassVar[dict[str, object]] = {"kafka_listen": "127.0.0.1:0"}

    def __init__(
        self, daemon: Daemon, options: Options, tokens: Sequence[str], secured: Secured | None
    ) -> None:
        super().__init__(daemon, options, tokens, secured)
        asks: dict[str, Any] = {"bootstrap.servers": bootstrap(daemon)}
        if tokens:
            asks |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN",
                     "sasl.username": "fuzz", "sasl.password": tokens[0]}  # fmt: skip
        told = AdminClient(asks).list_topics(timeout=HANG_S)
        ports = {node: each.port for node, each in told.brokers.items()}
        leads = {name: told.topics[name].partitions[0].leader for name in RECORD_TOPICS}
        # Most batches go to the shard that leads their topic.
        self._topics = {
            port: [*RECORD_TOPICS, *[name for name in RECORD_TOPICS if leads[name] == node] * 8]
            for node, port in ports.items()
        }

    def _send_stream(self, number: int) -> None:
        rng = random.Random(f"kafka {self.options.seed} {number}")
        port, topics = rng.choice(list(self._topics.items()))
        opening = opening_of(rng, self._tokens)
        frames = Maker(rng, number, topics).frames()
        # One that ends without a word, or may wait for minutes.
        ends = rng.random() < 0.1 or any(each.key in WAITING and not each.framed for each in frames)
        before = self._pulses
        try:
            answers = self._talk(port, opening, frames, reads=not ends, rng=rng)
        except (AssertionError, TimeoutError, ValueError) as error:
            self._find(f"stream {number}: {type(error).__name__} {error}")
            answers = {}
        if self._pulses - before > PULSES_MAX:
            self._find(f"stream {number} was open during {self._pulses - before} long polls")
        with self._lock:
            self.report.requests += len(frames)
        for frame in frames:
            self._note_frame(number, frame, answers.get(frame.correlation), opening.allowed)

    def _talk(
        self, port: int, opening: Opening, frames: Sequence[Frame], *, reads: bool,
        rng: random.Random,
    ) -> dict[int, bytes]:  # fmt: skip
        data = opening.data + b"".join(frame.data for frame in frames)
        with socket.create_connection(("127.0.0.1", port), HANG_S) as link:
            sender = threading.Thread(target=_send, args=(link, data, rng))
            sender.start()
            expected = [frame.correlation for frame in frames if frame.is_answered]
            whole = opening.allowed and all(
                frame.framed and frame.key not in WAITING for frame in frames
            )
            found: dict[int, bytes] = {}
            stream = link.makefile("rb")
            try:
                sender.join()
                if not reads:
                    return {}
                for _ in range(opening.answers):
                    if not _answer(stream):
                        return {}
                while True:
                    if not whole or len(found) == len(expected):
                        _half_close(link)
                    if not (answer := _answer(stream)):
                        break
                    if not opening.allowed:
                        continue
                    found[int.from_bytes(answer[:4], "big")] = answer
                    if all(frame.framed for frame in frames):
                        assert list(found) == expected[: len(found)], (list(found), expected)
            finally:
                sender.join()
                stream.close()
            return found

    def _note_frame(self, number: int, frame: Frame, answer: bytes | None, allowed: bool) -> None:
        status: dict[int, tuple[int, int]] = {}
        if answer is not None and frame.framed and frame.batches:
            schema = load_response_schema(Key.PRODUCE, frame.version)
            _, begin = entity_reader(schema.__header_schema__)(answer, 0)
            body: Any
            body, _ = entity_reader(schema)(answer, begin)
            said = [each for topic in body.responses for each in topic.partition_responses]
            assert len(said) == len(frame.batches), (len(said), frame)
            status = {
                batch.unit: (each.error_code.value, each.base_offset)
                for batch, each in zip(frame.batches, said, strict=True)
            }
        for batch in frame.batches:
            error, base = status.get(batch.unit, (None, 0))
            with self._lock:
                if error is not None:
                    self.report.answers[error] = self.report.answers.get(error, 0) + 1
                if batch.marks:
                    self._said[number, batch.unit] = Said(
                        Sent(b"", batch.topic, batch.marks, frame.framed, batch.exact, allowed),
                        whole=True,
                        status=UNKNOWN if error is None else REFUSED if error else 200,
                        first=base + 1, last=base + batch.marks,
                    )  # fmt: skip


def _send(link: socket.socket, data: bytes, rng: random.Random) -> None:
    at = 0
    try:
        while at < len(data):
            size = rng.choice((len(data), 1 << 16, 1_000, 7))
            link.sendall(data[at : at + size])
            at += size
    except OSError:
        return  # the daemon has closed it


def _half_close(link: socket.socket) -> None:
    try:
        link.shutdown(socket.SHUT_WR)
    except OSError:
        return


def _answer(stream: Any) -> bytes:
    """The next answer without its length; nothing at the end."""
    try:
        head = stream.read(4)
        if len(head) < 4:
            return b""
        body: bytes = stream.read(int.from_bytes(head, "big"))
    except ConnectionResetError:
        return b""
    assert len(body) == int.from_bytes(head, "big"), "an answer was cut off"
    return body
