"""Headgate's client: produce to durable topics, read, watch and consume them."""

from headgate.aio import (
    AsyncClient,
    AsyncConsumer,
    AsyncMessage,
    AsyncProducer,
    AsyncWatch,
)
from headgate.batching import Limits
from headgate.client import Client, Consumer, Message, Producer, Watch
from headgate.errors import (
    ConditionFailed,
    HeadgateError,
    NotAllowed,
    NotFound,
    OutcomeUnknown,
    ProducerFailed,
    Refused,
    UnknownAnswer,
    Unreachable,
)
from headgate.records import Advance, Gap, NewRecord, Part, Produced, Record

__all__ = [
    "Advance",
    "AsyncClient",
    "AsyncConsumer",
    "AsyncMessage",
    "AsyncProducer",
    "AsyncWatch",
    "Client",
    "ConditionFailed",
    "Consumer",
    "Gap",
    "HeadgateError",
    "Limits",
    "Message",
    "NewRecord",
    "NotAllowed",
    "NotFound",
    "OutcomeUnknown",
    "Part",
    "Produced",
    "Producer",
    "ProducerFailed",
    "Record",
    "Refused",
    "UnknownAnswer",
    "Unreachable",
    "Watch",
]
