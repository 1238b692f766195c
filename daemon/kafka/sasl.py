"""SASL: a client says by which mechanism it shows its token, and then shows it.

    SaslHandshake -> SaslAuthenticate -> authenticated, once for a connection
                  -> what the mechanism says, without a head (after version 0) -> the same

A failure is answered, and then the connection is to be closed. These mechanisms need no secret here
but the tokens themselves. SCRAM compares no token, so the daemon would have to keep another secret
for each.
"""

from __future__ import annotations

from collections.abc import Callable

from daemon.access.rights import Rights
from daemon.kafka.error_codes import (
    ILLEGAL_SASL_STATE,
    SASL_AUTHENTICATION_FAILED,
    UNSUPPORTED_SASL_MECHANISM,
)
from daemon.kafka.wire import KafkaRequest
from daemon.schemas.errors import ApiError

_WRONG_TOKEN = (
    "this daemon does not know the token, or it has expired; the password must be one that"
    " `headgate tokens create` printed"
)


def _plain(said: bytes) -> bytes | None:
    """RFC 4616: for whom, user, password. Nobody acts for another user."""
    parts = said.split(b"\0")
    return parts[2] if len(parts) == 3 and parts[0] in (b"", parts[1]) else None


def _bearer(said: bytes) -> bytes | None:
    """RFC 7628."""
    head, *pairs = said.split(b"\1")
    if head != b"n,,":
        return None
    for pair in pairs:
        name, _, value = pair.partition(b"=")
        scheme, _, token = value.partition(b" ")
        if name == b"auth" and scheme.lower() == b"bearer":
            return token.strip()
    return None


MECHANISMS: dict[str, Callable[[bytes], bytes | None]] = {"PLAIN": _plain, "OAUTHBEARER": _bearer}


def read_mechanism(asked: KafkaRequest) -> str:
    """Of a SaslHandshake. Raises Malformed."""
    return asked.body.name()


def read_said(asked: KafkaRequest) -> bytes:
    """What the mechanism says, of a SaslAuthenticate. Raises Malformed."""
    return asked.body.blob() or b""


class Exchange:
    """That of one connection. ``rights_of`` gives the rights of a token, or raises ApiError 401; it
    is None where there are no tokens."""

    def __init__(self, rights_of: Callable[[str], Rights] | None) -> None:
        self._rights_of = rights_of
        self._mechanism: str | None = None
        self.has_no_heads = False  # what comes next has no head
        self.rights: Rights | None = None
        self.failure = ""

    @property
    def is_under_way(self) -> bool:
        """Whether a client has begun it, and not gone on."""
        return self._mechanism is not None and self.rights is None and not self.failure

    def begin(self, head: KafkaRequest, mechanism: str) -> bytearray:
        """The answer to a SaslHandshake."""
        answer = head.answer()
        answer.int16(self._begin(mechanism, head.version))
        answer.array(MECHANISMS, answer.string)
        return answer.data

    def authenticate(self, head: KafkaRequest, said: bytes) -> bytearray:
        """The answer to a SaslAuthenticate."""
        answer = head.answer()
        error, message = self._authenticate(said)
        answer.int16(error)
        answer.string(message or None)
        answer.blob(b"")
        if head.version >= 1:
            answer.int64(0)  # it ends with its token: then the connection is closed
        return answer.end()

    def take_bytes(self, said: bytes) -> bytearray | None:
        """The same for what came without a head; None if it failed, which has no answer then."""
        self.has_no_heads = False
        error, _ = self._authenticate(said)
        return None if error else bytearray()

    def _begin(self, mechanism: str, version: int) -> int:
        if self._rights_of is None or self.rights is not None:
            return ILLEGAL_SASL_STATE
        if self._mechanism is not None:
            self.failure = "a second SaslHandshake came before SaslAuthenticate"
            return ILLEGAL_SASL_STATE
        if mechanism not in MECHANISMS:
            self.failure = f"the mechanism {mechanism[:80]!r} is not {' or '.join(MECHANISMS)}"
            return UNSUPPORTED_SASL_MECHANISM
        self._mechanism = mechanism
        self.has_no_heads = version == 0
        return 0

    def _authenticate(self, said: bytes) -> tuple[int, str]:
        if self._rights_of is None or self.rights is not None:
            return ILLEGAL_SASL_STATE, "there is nothing to authenticate on this connection"
        if self._mechanism is None:
            self.failure = "SaslAuthenticate came before SaslHandshake"
            return ILLEGAL_SASL_STATE, self.failure
        token = MECHANISMS[self._mechanism](said)
        if token is None:
            self.failure = f"what came is not what {self._mechanism} says"
        else:
            try:
                self.rights = self._rights_of(token.decode(errors="replace"))
                return 0, ""
            except ApiError:
                self.failure = _WRONG_TOKEN
        return SASL_AUTHENTICATION_FAILED, self.failure
