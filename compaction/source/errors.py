"""Errors of a read with Spark. Each message is one line, because users see the last of a trace."""

from __future__ import annotations


class SourceError(Exception):
    """A read that cannot continue. The rows so far are correct."""


class TopicUnknown(SourceError):
    """The topic does not exist."""

    def __init__(self, topic: str, where: str) -> None:
        super().__init__(f"there is no topic {topic!r} in {where}; see option 'subscribe'")
        self.topic = topic


class TopicRecreated(SourceError):
    """The topic was deleted and created again, so earlier offsets do not apply to it."""

    def __init__(self, topic: str, wanted: int, found: int) -> None:
        super().__init__(
            f"topic {topic!r} was deleted and created again while a read was planned (its id was"
            f" {wanted} and is {found}); run the query again"
        )
        self.topic = topic


class DataLoss(SourceError):
    """Requested offsets [first, last] can no longer be read.

    If ``failOnDataLoss`` is false, the read continues after them.
    """

    def __init__(self, topic: str, partition: int, first: int, last: int, reason: str) -> None:
        offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
        super().__init__(
            f"{offsets} of topic {topic!r}, partition {partition}, cannot be read: {reason}."
            " With the option failOnDataLoss = false a read continues without them"
        )
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last
        self.reason = reason


class PlannerRefused(SourceError):
    """Who plans said no: the daemon's code and sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"the daemon refused ({status} {code}): {message}")
        self.status = status
        self.code = code


class PlannerUnreachable(SourceError):
    """Who plans does not answer."""
