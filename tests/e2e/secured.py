"""Daemons that serve by TLS, and the certificates that they show.

An ``Authority`` issues certificates into a folder, as an operator has them: the certificate and its
key in two files, replaced one after the other.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import socket
import ssl
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import trustme

from tests.e2e.daemon import HANG_S, Answer, Daemon, running, wait_until

LONG_AGO, LATELY = datetime(2019, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, tzinfo=UTC)
FAR, FARTHER = datetime(2090, 1, 1, tzinfo=UTC), datetime(2099, 1, 1, tzinfo=UTC)


class Authority:
    """A private CA, and the files of one daemon's certificate in ``folder``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.ca = trustme.CA()
        self.file = folder / "ca.pem"
        self.file.write_bytes(self.ca.cert_pem.bytes())
        self.certificate, self.key = folder / "tls.pem", folder / "tls.key"
        self.issue()

    def issue(self, name: str = "localhost", **terms: Any) -> None:
        """Another certificate in the place of the one before."""
        self.show(*self.pair(name, **terms))

    def show(self, certificate: bytes, key: bytes) -> None:
        """Puts a pair in the place of the one before."""
        replace(self.certificate, certificate)
        replace(self.key, key)

    def pair(self, name: str = "localhost", **terms: Any) -> tuple[bytes, bytes]:
        """A certificate and its key."""
        made = self.ca.issue_cert(name, "127.0.0.1", **terms)
        chain = b"".join(each.bytes() for each in made.cert_chain_pems)
        return chain, made.private_key_pem.bytes()

    @property
    def settings(self) -> dict[str, object]:
        """Of a daemon that shows the certificate."""
        return {
            "tls_listen": "127.0.0.1:0",
            "tls_certificate": self.certificate,
            "tls_key": self.key,
        }

    @property
    def context(self) -> ssl.SSLContext:
        """Of a client that trusts this authority and no other."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.ca.configure_trust(context)
        return context


class Secured:
    """A daemon that serves by TLS."""

    def __init__(self, daemon: Daemon, authority: Authority) -> None:
        self.daemon, self.authority = daemon, authority
        found: re.Match[str] | None = wait_until(
            lambda: re.search(r"TLS on https://127.0.0.1:(\d+)", daemon.text), "the TLS listener"
        )
        assert found is not None
        self.port = int(found[1])
        self.url = f"https://localhost:{self.port}"

    def connected(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        """A connection whose handshake is complete."""
        made = socket.create_connection(("127.0.0.1", self.port), timeout=HANG_S)
        try:
            wrapped = (context or self.authority.context).wrap_socket(
                made, server_hostname="localhost", suppress_ragged_eofs=False
            )
        except BaseException:
            made.close()
            raise
        wrapped.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return wrapped

    @contextlib.contextmanager
    def client(
        self, context: ssl.SSLContext | None = None
    ) -> Iterator[http.client.HTTPSConnection]:
        """Python's client."""
        connection = http.client.HTTPSConnection(
            "localhost", self.port, timeout=HANG_S, context=context or self.authority.context
        )
        with contextlib.closing(connection):
            yield connection

    def ask(
        self, method: str, path: str, document: object = None,
        context: ssl.SSLContext | None = None, **headers: str,
    ) -> Answer:  # fmt: skip
        """One request on a connection of its own."""
        with self.client(context) as client:
            return asked(client, method, path, document, **headers)


def asked(
    client: http.client.HTTPConnection, method: str, path: str, document: object = None,
    **headers: str,
) -> Answer:  # fmt: skip
    """A JSON request on a connection that is kept."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    body = None
    if document is not None:
        body = document if isinstance(document, bytes) else json.dumps(document).encode()
        fields.setdefault("content-type", "application/json")
    client.request(method, path, body, fields)
    answer = client.getresponse()
    names = {name.lower(): value for name, value in answer.getheaders()}
    return Answer(answer.status, names, answer.read())


def replace(path: Path, content: bytes, mode: int = 0o600) -> None:
    """The file has this content from one moment to the next."""
    temporary = path.with_suffix(".new")
    temporary.write_bytes(content)
    temporary.chmod(mode)
    os.replace(temporary, path)


@contextlib.contextmanager
def secured(folder: Path, **options: Any) -> Iterator[Secured]:
    """A daemon that is ready, with an authority of its own in ``folder``."""
    authority = Authority(folder / "tls")
    settings = {**authority.settings, **options.pop("settings", {})}
    with running(folder / "data", settings=settings, **options) as daemon:
        yield Secured(daemon, authority)


# What is wrong with a pair.
BAD = ["another key", "expired", "not valid yet", "torn", "no key", "open to others", "not PEM"]


def spoil(authority: Authority, how: str) -> str:
    """Replaces the files by what cannot be used; returns what must be said of it."""
    certificate, key = authority.pair()
    if how == "another key":
        replace(authority.key, authority.pair()[1])
        return "the key does not match the certificate"
    if how == "expired":
        certificate, key = authority.pair(not_before=LONG_AGO, not_after=LATELY)
    if how == "not valid yet":
        certificate, key = authority.pair(not_before=FAR, not_after=FARTHER)
    if how == "torn":
        certificate = certificate[: len(certificate) // 4]
    if how == "not PEM":
        certificate = b"\xff\xfe" + certificate
    if how == "no key":
        authority.key.unlink()
        return "cannot read tls_key"
    # What is wrong comes second: a daemon may look in between.
    if how == "open to others":
        replace(authority.certificate, certificate)
        replace(authority.key, key, mode=0o640)
    else:
        replace(authority.key, key)
        replace(authority.certificate, certificate)
    return {
        "expired": "certificate has expired",
        "not valid yet": "certificate is not yet valid",
        "torn": "must be in PEM format",
        "not PEM": "is not in PEM format",
        "open to others": "other users have rights to tls_key",
    }[how]
