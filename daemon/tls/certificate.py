"""The certificate that the TLS listeners show, its key, and the authorities of client certificates.

    read (the files) -> served (they are right for each other, and now) -> in force -> replaced

The daemon starts only with a good pair. Later the files are looked at twice a second, and read when
they have stayed the same for one look, since a certificate and its key are two files. A pair that
cannot be used leaves the former one in force. A shard that starts gets the pair in force from the
supervisor, whatever the files are by then.

What a handshake needs is in a ``ssl.SSLContext``, which is made anew for each pair: handshakes and
connections keep the one they began with.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec import Struct

from daemon.config import Config
from ledger.private_files import OTHERS, signature
from shards.clock import monotonic_ns

LOOK_NS = 500_000_000
FILE_BYTES_MAX = 1 << 20
# X509_V_FLAG_NO_CHECK_TIME, which the ssl module does not name.
_NO_CHECK_TIME = 0x200000


class CertificateError(Exception):
    """A pair cannot be used; the message names the setting, the file and the reason."""


class Files(Struct, frozen=True):
    """Where the three are; ``client_ca`` is None if clients are asked for no certificate."""

    certificate: Path
    key: Path
    client_ca: Path | None

    def signature(self) -> tuple[object, ...]:
        """What changes when a file does. Links are followed: certificates are often replaced by
        replacing a link."""
        paths = (self.certificate, self.key, self.client_ca)
        return tuple(path and signature(path, follow_link=True) for path in paths)


class Pair(Struct, frozen=True):
    """What was in the files."""

    certificate: str
    key: str
    client_ca: str | None

    def __repr__(self) -> str:
        return "Pair(...)"  # logs must not show the key


class CheckedPair(Struct, frozen=True):
    """A pair that can be used. ``names`` are those for which the certificate was issued."""

    pair: Pair
    context: ssl.SSLContext
    names: tuple[str, ...]
    expires: datetime

    def __str__(self) -> str:
        return f"{', '.join(self.names) or 'no names'}, until {self.expires:%Y-%m-%d %H:%M:%S} UTC"


def files_of(config: Config) -> Files | None:
    """Those of a daemon with this configuration; None if it has no certificate."""
    if config.tls_certificate is None:
        return None
    assert config.tls_key is not None  # daemon/config checks
    ca = config.tls_client_ca
    return Files(
        Path(config.tls_certificate), Path(config.tls_key), None if ca is None else Path(ca)
    )


class Certificate:
    """The pair in force in one process. Without ``pair`` it is read. Raises CertificateError."""

    def __init__(self, files: Files, pair: Pair | None = None) -> None:
        self._files = files
        self._taken: object = None  # the signature of the pair in force, if it was read here
        self._refused: tuple[object, str] | None = None
        self._look_at_ns = 0
        self._seen: object = files.signature()
        if pair is None:
            self.in_force = self._read()
            self._taken = self._seen
        else:
            self.in_force = checked(pair, files, check_time=False)

    @property
    def is_current(self) -> bool:
        """Whether what was last in the files is in force."""
        return self._refused is None

    def look(self, *, now: bool = False) -> bool:
        """Follows the files; ``now``: without waiting for the next look. Returns whether another
        pair is in force. Raises CertificateError for files that cannot be used, once until they
        or the reason change."""
        now_ns = monotonic_ns()
        if now_ns < self._look_at_ns and not now:
            return False
        self._look_at_ns = now_ns + LOOK_NS
        seen = self._files.signature()
        before, self._seen = self._seen, seen
        if seen == self._taken:
            self._refused = None
            return False
        if seen != before and not now:
            return False
        try:
            read = self._read()
        except CertificateError as error:
            refused = (seen, str(error))
            if refused == self._refused:
                return False
            self._refused = refused
            raise
        self._taken, self._refused = seen, None
        if read.pair == self.in_force.pair:
            return False
        self.in_force = read
        return True

    def _read(self) -> CheckedPair:
        files = self._files
        key = _text(files.key, "tls_key", is_private=True)
        ca = files.client_ca
        pair = Pair(
            _text(files.certificate, "tls_certificate"),
            key,
            None if ca is None else _text(ca, "tls_client_ca"),
        )
        return checked(pair, files)


def checked(pair: Pair, files: Files, *, check_time: bool = True) -> CheckedPair:
    """Makes the context, and tries it: a client in memory must accept the certificate. Raises
    CertificateError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    # A connection lasts; a ticket would cost each handshake a write.
    context.num_tickets = 0
    with _as_file(pair.certificate) as certificate, _as_file(pair.key) as key:
        try:
            context.load_cert_chain(certificate, key, password=_no_password)
        except (ssl.SSLError, _Encrypted) as error:
            raise _unusable(files, error) from None
    if pair.client_ca is not None:
        context.verify_mode = ssl.CERT_OPTIONAL
        try:
            context.load_verify_locations(cadata=pair.client_ca)
        except ssl.SSLError as error:
            raise CertificateError(
                f"tls_client_ca {files.client_ca} has no certificate that can be used"
                f" ({_reason(error)}); it needs one or more, in PEM format"
            ) from None
    names, expires = _tried(context, pair, files, check_time=check_time)
    return CheckedPair(pair, context, names, expires)


class _Encrypted(Exception):
    """The key needs a password."""


def _no_password() -> str:
    raise _Encrypted


def _unusable(files: Files, error: Exception) -> CertificateError:
    where = f"tls_certificate {files.certificate} and tls_key {files.key}"
    if isinstance(error, _Encrypted):
        return CertificateError(f"tls_key {files.key} is encrypted; a daemon has no password")
    reason = _reason(error)
    if reason == "KEY_VALUES_MISMATCH":
        return CertificateError(f"{where} are not a pair: the key does not match the certificate")
    return CertificateError(
        f"{where} cannot be used ({reason}); both must be in PEM format, the daemon's certificate"
        " before those of its issuers"
    )


def _reason(error: Exception) -> str:
    return getattr(error, "reason", None) or str(error)


def _tried(
    context: ssl.SSLContext, pair: Pair, files: Files, *, check_time: bool
) -> tuple[tuple[str, ...], datetime]:
    """Names and end of the certificate, as a client sees them that trusts it itself."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if not check_time:
        client.verify_flags |= _NO_CHECK_TIME  # type: ignore[operator, unused-ignore]
    try:
        client.load_verify_locations(cadata=pair.certificate)
        shown = _handshake(context, client)
    except ssl.SSLCertVerificationError as error:
        raise CertificateError(
            f"tls_certificate {files.certificate} cannot be used: {error.verify_message}"
            f"{_untimely(context, client)}"
        ) from None
    except ssl.SSLError as error:
        raise _unusable(files, error) from None
    names = names_of(shown)
    expires_s = ssl.cert_time_to_seconds(str(shown["notAfter"]))
    return names, datetime.fromtimestamp(expires_s, UTC)


def _untimely(context: ssl.SSLContext, client: ssl.SSLContext) -> str:
    """When a certificate is valid, if it could be used then. The same until the files change."""
    client.verify_flags |= _NO_CHECK_TIME  # type: ignore[operator, unused-ignore]
    try:
        shown = _handshake(context, client)
    except ssl.SSLError:
        return ""
    return (
        f" (it is valid from {shown['notBefore']} to {shown['notAfter']}); replace both files, or"
        " set this machine's clock if it is wrong"
    )


def names_of(certificate: Mapping[str, Any]) -> tuple[str, ...]:
    """The names of a certificate, as ``getpeercert`` gives it: DNS names, addresses, URIs."""
    return tuple(str(value) for _, value in certificate.get("subjectAltName", ()))


def _handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> dict[str, Any]:
    """The certificate that a client is shown. Raises ssl.SSLError."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    asking = client.wrap_bio(down, up)
    answering = server.wrap_bio(up, down, server_side=True)
    while True:
        done = 0
        for side in (asking, answering):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
                done += 1
        if done == 2:
            return dict(asking.getpeercert() or {})


@contextlib.contextmanager
def _as_file(text: str) -> Iterator[str]:
    """A path for a library that takes no text. It is memory: no key is written to a disk."""
    fd = os.memfd_create("headgate-tls", os.MFD_CLOEXEC)
    try:
        os.write(fd, text.encode())
        yield f"/proc/self/fd/{fd}"
    finally:
        os.close(fd)


def _text(path: Path, setting: str, *, is_private: bool = False) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise CertificateError(f"{setting} {path} is not a file")
            if is_private and status.st_mode & OTHERS:
                raise CertificateError(
                    f"other users have rights to {setting} {path} (mode"
                    f" {stat.S_IMODE(status.st_mode):o}): run `chmod 600 {path}`, and take another"
                    " key if anybody may have read it"
                )
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise CertificateError(f"cannot read {setting} {path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise CertificateError(
            f"{setting} {path} has more than {FILE_BYTES_MAX} bytes, which is the limit"
        )
    try:
        return data.decode("ascii")
    except UnicodeDecodeError:
        raise CertificateError(f"{setting} {path} is not in PEM format") from None
