"""Which pages may read answers: cross-origin resource sharing, as the Fetch standard has it.

A browser lets a page of another origin read an answer only if a header allows it, and asks before
most requests (a *preflight*, OPTIONS). With no allowed origins nothing is sent and pages read
nothing. No answer allows credentials: there are none.

This does not control access: programs other than browsers ignore it.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Sequence

from daemon.http.head import Head

CorsHeaders = tuple[tuple[str, str], ...]

# In addition to those that pages may always read.
_EXPOSED = ("Access-Control-Expose-Headers", "Allow, Retry-After")
_PREFLIGHT_S = 7200  # browsers cap it at two hours or less


class Cors:
    """The allowed origins, as ``scheme://host[:port]``; ``*`` allows all."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._origins = frozenset(origins)
        self._any = "*" in self._origins
        # Those that answers name.
        self.named: Container[str] = () if self._any else self._origins

    def allows(self, origin: str) -> bool:
        """Whether pages of this origin may use the API; ``*`` stands for all."""
        return self._any or origin in self._origins

    def headers(self, head: Head) -> CorsHeaders:
        """What an answer to ``head`` says about the pages that may read it."""
        if self._any:
            return (("Access-Control-Allow-Origin", "*"), _EXPOSED)
        vary = ("Vary", "Origin")  # a cache must not give one page's answer to another
        origin = head.headers.get("origin")
        if origin is None or origin not in self._origins:
            return (vary,)
        return (("Access-Control-Allow-Origin", origin), _EXPOSED, vary)


def preflight_headers(methods: Iterable[str]) -> CorsHeaders:
    """What the answer to OPTIONS of a path with these methods adds."""
    allowed = ", ".join(methods)
    return (
        ("Allow", allowed),
        ("Access-Control-Allow-Methods", allowed),
        ("Access-Control-Allow-Headers", "*, Authorization, X-Api-Key"),
        ("Access-Control-Max-Age", str(_PREFLIGHT_S)),
    )
