"""Whether the tokens with which routers and push subscriptions were set up are still in force.

Those that were set up by a token wait when it goes, and go on when they are set up again. What was
set up without one, by a daemon without tokens or through its Unix socket, does not depend on any.
"""

from __future__ import annotations

from typing import Protocol

from ledger.types import TokenName


class TokensInForce(Protocol):
    """What the daemon knows of its tokens (daemon/access/access.py)."""

    @property
    def version(self) -> int:
        """Changes whenever ``why_gone`` may say something else."""

    def why_gone(self, token: TokenName | None) -> str:
        """Why what was set up with this token must wait; empty while it is in force."""


class NoTokens:
    """A daemon without tokens: nothing waits."""

    version = 0

    def why_gone(self, token: TokenName | None) -> str:
        return ""
