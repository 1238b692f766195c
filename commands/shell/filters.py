"""Options for the filter of a router or a subscription."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from typing import Any, TypeVar

import click

from ledger.delivery.record_filter import RecordFilter

Function = TypeVar("Function", bound=Callable[..., Any])
_LABELS = ("tag", "node", "key")


def filter_options(function: Function) -> Function:
    """``tag``, ``node``, ``key`` and ``where``; those not given are None or empty."""
    for option in (
        click.option("--where", metavar="FIELD=PATTERN", multiple=True,
                     help="Only records with such a field in the data; repeatable, and all must"
                     " match."),
        *(
            click.option(f"--{label}", metavar="PATTERN", help=f"Only records with such a {label}.")
            for label in reversed(_LABELS)
        ),
    ):  # fmt: skip
        function = option(function)
    return function


def take_filter(options: MutableMapping[str, Any]) -> dict[str, Any]:
    """The filter as the API takes it, empty if nothing was given. Takes these options out of
    ``options``."""
    labels = {label: options.pop(label) for label in _LABELS}
    wanted = {label: pattern for label, pattern in labels.items() if pattern is not None}
    where = options.pop("where")
    return wanted | ({"where": list(where)} if where else {})


def filter_text(found: RecordFilter | None) -> str:
    """A filter in a line; empty if there is none."""
    if found is None:
        return ""
    labels = [(label, getattr(found, label)) for label in _LABELS]
    named = [f"{label} {pattern}" for label, pattern in labels if pattern is not None]
    return ", ".join([*named, *(f"where {each}" for each in found.where)])
