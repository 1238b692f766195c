"""Whose certificates a client of a daemon trusts: the system's authorities, and those of the file
that ``HEADGATE_CA_FILE`` names."""

from __future__ import annotations

import http.client
import os
import ssl
from collections.abc import Mapping

CA_FILE = "HEADGATE_CA_FILE"


class AuthoritiesUnusable(ValueError):
    """The file cannot be read, or has no certificates."""


def https_connection(
    host: str, port: int | None, timeout_s: float, environ: Mapping[str, str] | None = None
) -> http.client.HTTPSConnection:
    """A connection that is not open yet. Raises AuthoritiesUnusable."""
    context = trusting(os.environ if environ is None else environ)
    return http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)


def trusting(environ: Mapping[str, str]) -> ssl.SSLContext:
    """What checks a daemon's certificate. Raises AuthoritiesUnusable."""
    context = ssl.create_default_context()
    path = environ.get(CA_FILE, "")
    if path:
        try:
            context.load_verify_locations(path)
        except ssl.SSLError:
            raise AuthoritiesUnusable(
                f"{CA_FILE} {path} has no certificate that can be used; it needs one or more, in"
                " PEM format"
            ) from None
        except OSError as error:
            raise AuthoritiesUnusable(f"cannot read {CA_FILE} {path}: {error.strerror}") from error
    return context
