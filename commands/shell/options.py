"""Options and arguments that several commands share, so that they read and behave the same."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from commands.client.http import Client, Refused, UnknownAnswer, Unreachable
from commands.client.topics import all_states
from commands.output import JSON_ERRORS
from commands.quantities import Duration
from commands.shell.exits import USAGE, CommandFailed

if TYPE_CHECKING:
    from daemon.config import Config

Function = TypeVar("Function", bound=Callable[..., Any])
T = TypeVar("T")
_PROFILE = "headgate.profile"  # of the context
COMPLETION_TIMEOUT_S = 1.0  # a shell that waits longer for a completion seems to hang


def output_option(function: Function) -> Function:
    """``as_json``: stdout is then one JSON value and nothing else, also of an error."""

    def chosen(context: click.Context, _: click.Parameter, value: str) -> bool:
        context.meta[JSON_ERRORS] = value == "json"
        return value == "json"

    return click.option(
        "-o",
        "--output",
        "as_json",
        type=click.Choice(["table", "json"]),
        default="table",
        show_default=True,
        is_eager=True,
        callback=chosen,
        help="A table for people or JSON for programs.",
    )(function)


def client_option(function: Function) -> Function:
    """``client``: connected when it is first used, closed when the command ends."""

    def opened(context: click.Context, _: click.Parameter, value: str | None) -> Client:
        from commands.shell.profiles import place_of

        place = place_of(value, context.meta.get(_PROFILE))
        try:
            client = Client(place.url, environ=place.environ)
        except ValueError as error:
            if place.profile:
                raise CommandFailed(f"{place.profile}: {error}", exit_code=USAGE) from error
            raise click.BadParameter(str(error)) from error
        context.call_on_close(client.close)
        return client

    def named(context: click.Context, _: click.Parameter, value: str | None) -> None:
        context.meta[_PROFILE] = value

    profile = click.option(
        "--profile", metavar="NAME", is_eager=True, expose_value=False, callback=named,
        shell_complete=_profile_names,
        help="A daemon of your config.toml; by default HEADGATE_PROFILE, or the file's default.",
    )  # fmt: skip
    url = click.option(
        "--url", "client", metavar="URL", callback=opened,
        help="The address of the daemon; by default HEADGATE_URL, a profile, or"
        " http://127.0.0.1:7440.",
    )  # fmt: skip
    return url(profile(function))


def _profile_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[str]:
    from commands.shell.profiles import names

    try:
        return [name for name in names() if name.startswith(incomplete)]
    except CommandFailed:
        return []


def topic_argument(function: Function) -> Function:
    """``topic``; a shell completes it with the names of the daemon's topics."""
    return click.argument("topic", shell_complete=_topic_names)(function)


def topics_argument(function: Function) -> Function:
    """``topics``: one or more, completed like ``topic_argument``."""
    return click.argument(
        "topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=_topic_names
    )(function)


def _topic_names(context: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
    given = context.params.get("client")
    if given is None:  # of a --url that cannot be used
        return []
    try:
        with given.another(COMPLETION_TIMEOUT_S) as client:
            names = [state.topic for state in all_states(client)]
            return [name for name in names if name.startswith(incomplete)]
    except (Refused, UnknownAnswer, Unreachable):
        return []


def parsed_by(parse: Callable[[str], T]) -> Callable[..., T | None]:
    """A click callback for an option whose text ``parse`` understands, or raises ValueError."""

    def callback(_: click.Context, __: click.Parameter, value: str | None) -> T | None:
        try:
            return None if value is None else parse(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def within(low: float, high: float) -> click.FloatRange:
    """A number with limits. Click would let NaN through, which no comparison refuses."""
    return _Finite(low, high)


class _Finite(click.FloatRange):
    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number = float(super().convert(value, param, ctx))
        if number != number:
            self.fail(f"{value!r} is not in the range {self._describe_range()}.", param, ctx)
        return number


since_option = click.option(
    "--since", metavar="TIME", help="From 90s, 15m, 1h, 2d ago, or an ISO 8601 time."
)
from_seq_option = click.option(
    "--from-seq", type=click.IntRange(0), metavar="N", help="After offset N."
)
records_option = click.option(
    "-n", "--records", type=click.IntRange(1), metavar="N", help="Stop after N records."
)
partition_option = click.option(
    "--partition", type=click.IntRange(0, 999), metavar="P", help="Only this partition."
)
wait_option = click.option(
    "--wait",
    "wait_s",
    type=Duration(0, 86_400),
    default="60s",
    show_default=True,
    metavar="DURATION",
    help="How long to wait for a daemon that does not answer or is busy.",
)
reader_wait_option = click.option(
    "--wait",
    "wait_s",
    type=Duration(0, 86_400),
    metavar="DURATION",
    help="How long to wait for a daemon that does not answer or is busy; by default 60s for one"
    " that has answered before, else 0.",
)
yes_option = click.option("--yes", is_flag=True, help="Do not ask; it asks on a terminal only.")


_CONFIG_OPTIONS = {
    "config": click.option(
        "--config", "config_file", metavar="FILE", help="A TOML file (docs/configuration.md)."
    ),
    "data": click.option("--data", metavar="DIR", help="The data directory (key data_dir)."),
    "listen": click.option("--listen", metavar="HOST:PORT", help="Where to listen (key listen)."),
    "shards": click.option("--shards", metavar="N", help="How many shard processes (key shards)."),
    "store": click.option(
        "--store", metavar="URL", help="s3://BUCKET/PREFIX or file:///FOLDER (key store_url)."
    ),
    "set": click.option(
        "--set", "settings", metavar="KEY=VALUE", multiple=True, help="Set any key; repeatable."
    ),
}


config_option, data_option = _CONFIG_OPTIONS["config"], _CONFIG_OPTIONS["data"]


def serve_options(function: Function) -> Function:
    """The whole configuration, for commands that start the daemon or show what it would use."""
    for option in reversed(_CONFIG_OPTIONS.values()):
        function = option(function)
    return function


def place_options(function: Function) -> Function:
    """The configuration of a command that opens ledger and store: no listen, no shards."""
    for name in ("set", "store", "data", "config"):
        function = _CONFIG_OPTIONS[name](function)
    return function


daemon_url_option = click.option(
    "--url", metavar="URL", help="Ask this daemon, whose data directory is elsewhere."
)


def refuse_with_url(options: Mapping[str, object]) -> None:
    """The daemon at --url has its own configuration, so ours would be ignored."""
    flags = {"config_file": "--config", "data": "--data", "store": "--store", "settings": "--set"}
    given = [flag for name, flag in flags.items() if options[name]]
    if given:
        raise click.UsageError(
            f"--url cannot be combined with {', '.join(given)}: the daemon there has its own"
            " configuration"
        )


def loaded(
    config_file: str | None,
    settings: tuple[str, ...],
    data: str | None,
    store: str | None,
    listen: str | None = None,
    shards: str | None = None,
    *,
    own: Sequence[tuple[str, str | None, str]] = (),
) -> Config:
    """The configuration that the options of a command ask for; a flag takes precedence over --set.

    ``own`` are a command's own flags for keys: key, value and option. Raises ConfigError.
    """
    from daemon.config import Override, load

    overrides = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise click.BadParameter(f"must be KEY=VALUE, got {setting!r}", param_hint="--set")
        overrides.append(Override(key.strip(), value))
    flags = (
        ("listen", listen, "--listen"),
        ("data_dir", data, "--data"),
        ("store_url", store, "--store"),
        ("shards", shards, "--shards"),
        *own,
    )
    overrides += [Override(key, value, flag) for key, value, flag in flags if value is not None]
    return load(config_file, os.environ, overrides)
