"""``headgate config``: shows and documents the configuration."""

from __future__ import annotations

from typing import Any

import click

from commands.output import echo, print_json, table
from commands.shell.options import loaded, output_option, serve_options
from compaction.access.redaction import redacted
from daemon.config import KEYS
from daemon.config.docs import markdown
from uploader.stores.prices import Prices


@click.group()
def config() -> None:
    """Show the configuration, or print its documentation.

    \b
    Example:
      headgate config show --origin
    """


@config.command("show")
@click.option("--origin", is_flag=True, help="Also show where each value comes from.")
@serve_options
@output_option
def config_show(origin: bool, as_json: bool, **options: Any) -> None:
    """Print what `headgate serve` would run with, given the same options and environment.

    Passwords are shown as ***.

    \b
    Examples:
      headgate config show --origin
      headgate config show --config /etc/headgate/headgate.toml -o json
    """
    chosen = loaded(**options)
    values = {key: getattr(chosen, key) for key in KEYS}
    values = {
        key: redacted(value) if isinstance(value, str) else value for key, value in values.items()
    }
    if as_json and origin:
        print_json(
            {key: {"value": value, "origin": chosen.origins[key]} for key, value in values.items()}
        )
    elif as_json:
        print_json(values)
    else:
        texts = {key: _text(value) for key, value in values.items()}
        if origin:
            rows = [(key, text, chosen.origins[key]) for key, text in texts.items()]
            echo(table(("key", "value", "origin"), rows))
        else:
            echo(table(("key", "value"), list(texts.items())))


def _text(value: Any) -> Any:
    if isinstance(value, tuple):
        return ", ".join(value)
    if not isinstance(value, dict):
        return value
    if any(isinstance(each, Prices) for each in value.values()):
        # All of them would be wider than a terminal.
        puts = ", ".join(f"{name} {each.put_usd_per_1000:g}" for name, each in value.items())
        return f"per 1,000 PUTs: {puts}"
    return ", ".join(f"{name}={each:g}" for name, each in value.items())


@config.command("docs")
def config_docs() -> None:
    """Print docs/configuration.md, which is generated from the table of keys.

    \b
    Example:
      headgate config docs
    """
    echo(markdown(), nl=False)
