"""Options that several commands share, so that they read and behave the same everywhere."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, TypeVar

import click

from commands.client import Client
from daemon.config import Config, Override, load

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")
URL_DEFAULT = "http://127.0.0.1:7440"


def output_option(function: Function) -> Function:
    """``as_json``: stdout is then one JSON value and nothing else."""

    def chosen(_: click.Context, __: click.Parameter, value: str) -> bool:
        return value == "json"

    return click.option(
        "-o",
        "--output",
        "as_json",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        callback=chosen,
        help="A table for people or JSON for programs.",
    )(function)


def client_option(function: Function) -> Function:
    """``client``: connected when it is first used, closed when the command ends."""

    def opened(context: click.Context, _: click.Parameter, value: str) -> Client:
        try:
            client = Client(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
        context.call_on_close(client.close)
        return client

    return click.option(
        "--url",
        "client",
        envvar="HEADGATE_URL",
        default=URL_DEFAULT,
        show_default=True,
        show_envvar=True,
        metavar="URL",
        callback=opened,
        help="Where the daemon listens.",
    )(function)


def parsed_by(parse: Callable[[str], T]) -> Callable[..., T | None]:
    """A click callback for an option whose text ``parse`` understands, or raises ValueError."""

    def callback(_: click.Context, __: click.Parameter, value: str | None) -> T | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


wait_option = click.option(
    "--wait",
    "wait_s",
    type=click.FloatRange(0, 86_400),
    default=60,
    show_default=True,
    metavar="SECONDS",
    help="At most this long for a daemon that does not answer, or says that it is busy.",
)


_CONFIG_OPTIONS = (
    click.option(
        "--config", "config_file", metavar="FILE", help="A TOML file (docs/configuration.md)."
    ),
    click.option("--data", metavar="DIR", help="The data folder; the key data_dir."),
    click.option("--listen", metavar="HOST:PORT", help="Where to listen; the key listen."),
    click.option("--shards", metavar="N", help="How many shard processes; the key shards."),
    click.option("--store", metavar="URL", help="s3://BUCKET/PREFIX or file:///FOLDER; store_url."),
    click.option(
        "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Any key; may be repeated."
    ),
)


def serve_options(function: Function) -> Function:
    """All of the configuration, for commands that start or show it."""
    for option in reversed(_CONFIG_OPTIONS):
        function = option(function)
    return function


def chaos_spec(_: click.Context, __: click.Parameter, value: str) -> str:
    """A callback that reads ``--chaos`` before anything is started."""
    if value:
        from uploader.stores.faults import ChaosSpecError, parse

        try:
            parse(value)
        except ChaosSpecError as error:
            raise click.BadParameter(str(error)) from error
    return value


def place_options(function: Function) -> Function:
    """The configuration of a command that works beside the daemon: no listen, no shards."""
    for option in (_CONFIG_OPTIONS[5], _CONFIG_OPTIONS[4], _CONFIG_OPTIONS[1], _CONFIG_OPTIONS[0]):
        function = option(function)
    return function


def loaded(
    config_file: str | None,
    settings: tuple[str, ...],
    data: str | None,
    store: str | None,
    listen: str | None = None,
    shards: str | None = None,
) -> Config:
    """The configuration that the options of a command ask for; a flag goes before a --set."""
    overrides = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"{setting!r} is no KEY=VALUE", param_hint="--set")
        overrides.append(Override(key.strip(), value))
    flags = (
        ("listen", listen, "--listen"),
        ("data_dir", data, "--data"),
        ("store_url", store, "--store"),
        ("shards", shards, "--shards"),
    )
    overrides += [Override(key, value, flag) for key, value, flag in flags if value is not None]
    return load(config_file, os.environ, overrides)
