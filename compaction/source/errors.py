"""What stops a read with Spark, in sentences for whoever reads a Spark trace's last line."""

from __future__ import annotations


class SourceError(Exception):
    """A read that cannot go on; nothing of it is wrong so far."""


class TopicUnknown(SourceError):
    """A topic that is not there."""

    def __init__(self, topic: str, where: str) -> None:
        super().__init__(f"there is no topic {topic!r} in {where}; see option 'subscribe'")
        self.topic = topic


class TopicRecreated(SourceError):
    """A topic that was deleted and made anew: offsets of the former one say nothing of it."""

    def __init__(self, topic: str, wanted: int, found: int) -> None:
        super().__init__(
            f"topic {topic!r} was deleted and made anew while a read of it was planned (its id was"
            f" {wanted} and is {found}); run the query again"
        )
        self.topic = topic


class DataLoss(SourceError):
    """Offsets [first, last] that were asked for cannot be read any more.

    With ``failOnDataLoss`` false a read goes on behind them.
    """

    def __init__(self, topic: str, partition: int, first: int, last: int, reason: str) -> None:
        offsets = f"offset {first}" if first == last else f"offsets {first} to {last}"
        super().__init__(
            f"{offsets} of topic {topic!r}, partition {partition}, cannot be read: {reason}."
            " With the option failOnDataLoss = false a read goes on without them"
        )
        self.topic = topic
        self.partition = partition
        self.first = first
        self.last = last


class PlannerRefused(SourceError):
    """Who plans said no: the daemon's code and sentence."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(f"the daemon refused ({status} {code}): {message}")
        self.status = status
        self.code = code


class PlannerUnreachable(SourceError):
    """Who plans does not answer."""
