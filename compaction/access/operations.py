"""How a function of the ledger travels: its name, its arguments, its result, its refusals.

An *operation* is a function ``fn(tx, *args)`` of ``ledger/``, named by module and function, like
``lake.runs.begin``. Arguments are a JSON array and the result is JSON, both of the types that the
function's annotations name. Which operations a daemon serves ``daemon/api/handlers/admin.py`` says.

``now_ms`` of an operation is always the owner's clock of ages: the caller may be another machine,
or may have been stopped since it looked at a clock. Callers pass ``NOW``.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from typing import Any

import msgspec

from ledger import errors
from ledger.errors import LedgerError
from ledger.lake import lake_tables

NOW = 0

# Refusals that callers handle; their attributes travel too.
_TRAVELLING: dict[str, type[LedgerError]] = {
    kind.__name__: kind
    for kind in (
        errors.ReadLeasesFull,
        errors.RunLost,
        errors.RunUnfinished,
        errors.SwitchRefused,
        errors.TopicMissing,
    )
}


class Refusal(msgspec.Struct, frozen=True):
    """A LedgerError on its way: its kind and its attributes."""

    kind: str
    operands: dict[str, Any]


def refusal_of(error: LedgerError) -> Refusal | None:
    """What the caller is told; None for an error that is not of its doing."""
    kind = type(error).__name__
    return Refusal(kind, dict(vars(error))) if kind in _TRAVELLING else None


def error_of(refusal: Refusal, message: str) -> LedgerError | None:
    """The same error again; None for a kind that this version does not know."""
    kind = _TRAVELLING.get(refusal.kind)
    if kind is None:
        return None
    error = kind.__new__(kind, message)
    Exception.__init__(error, message)
    vars(error).update(refusal.operands)
    return error


class Operation:
    """A function with the types of its arguments and of its result.

    They are looked at when it is first called: a daemon serves 70 operations and starts often.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = f"{function.__module__.removeprefix('ledger.')}.{function.__name__}"

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.function)

    @cached_property
    def _parameters(self) -> list[str]:
        return list(self._signature.parameters)[1:]

    @cached_property
    def _hints(self) -> dict[str, Any]:
        return typing.get_type_hints(self.function)

    @cached_property
    def _arguments(self) -> list[msgspec.json.Decoder[Any]]:
        return [msgspec.json.Decoder(self._hints[name]) for name in self._parameters]

    @cached_property
    def _result(self) -> msgspec.json.Decoder[Any]:
        return msgspec.json.Decoder(self._hints["return"])

    def encode(self, args: Sequence[Any], named: dict[str, Any]) -> bytes:
        """The arguments as JSON, those by name in their places."""
        bound = self._signature.bind(None, *args, **named)
        bound.apply_defaults()
        return msgspec.json.encode([bound.arguments[name] for name in self._parameters])

    def decode(self, raw: Sequence[msgspec.Raw], now_ms: int) -> dict[str, Any]:
        """The arguments by name. Raises msgspec.MsgspecError, UnicodeDecodeError."""
        if len(raw) != len(self._parameters):
            raise msgspec.ValidationError(
                f"{self.name} takes {len(self._parameters)} arguments, got {len(raw)}"
            )
        found = zip(self._parameters, self._arguments, raw, strict=True)
        return self.at({name: decoder.decode(each) for name, decoder, each in found}, now_ms)

    def at(self, arguments: dict[str, Any], now_ms: int) -> dict[str, Any]:
        """The arguments with the owner's time in them."""
        return {**arguments, "now_ms": now_ms} if "now_ms" in self._parameters else arguments

    def bind(self, args: Sequence[Any], named: dict[str, Any], now_ms: int) -> dict[str, Any]:
        """The arguments by name, without a journey."""
        arguments = dict(self._signature.bind(None, *args, **named).arguments)
        del arguments[next(iter(self._signature.parameters))]
        return self.at(arguments, now_ms)

    def check_lake(self, named: dict[str, Any], lake: str) -> None:
        """Checks that files that an operation of the ledger names are below the owner's lake.
        Raises SwitchRefused."""
        if self.function is lake_tables.switch:
            for switch in named.get("switches", ()):
                lake_tables.check_below(lake, switch.table, lake_tables.files_of(switch))
        elif self.function is lake_tables.move:
            location = named["metadata_location"]
            lake_tables.check_below(lake, named["table"].name, [location])

    def result(self, body: bytes) -> Any:
        """What the function returned."""
        return self._result.decode(body)


@cache
def operation(function: Callable[..., Any]) -> Operation:
    """The operation that a function is; functions are few."""
    return Operation(function)
