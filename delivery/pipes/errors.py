"""Why a request through a pipe has no answer."""

from __future__ import annotations


class PipeError(Exception):
    """A request has no answer of its owner."""


class PipeBroken(PipeError):
    """The owner died, or is being restarted: whether it has done what was asked is unknown."""


class PipeBusy(PipeError):
    """Too much is under way, here or at the owner: nothing was done."""


class PipeFailed(PipeError):
    """The owner has a bug, and logged it."""


class PipeRefused(PipeError):
    """The owner's answer is an error, described by ``payload``. Handlers raise it too."""

    def __init__(self, payload: bytes) -> None:
        super().__init__(f"refused, in {len(payload)} bytes")
        self.payload = payload


class FrameTooLarge(PipeError):
    """What was asked is longer than a frame may be."""
