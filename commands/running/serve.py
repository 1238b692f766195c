"""``headgate serve``: runs the daemon."""

from __future__ import annotations

from typing import Any

import click

from commands.shell.options import loaded, serve_options


def _chaos_spec(_: click.Context, __: click.Parameter, value: str) -> str:
    if value:
        from uploader.stores.faults import ChaosSpecError, parse

        try:
            parse(value)
        except ChaosSpecError as error:
            raise click.BadParameter(str(error)) from error
    return value


@click.command()
@serve_options
@click.option(
    "--take-over", is_flag=True, help="Take the store from the daemon of another data directory."
)
@click.option(
    "--standby", is_flag=True,
    help="While another daemon owns the store, wait, and take over when it is silent.",
)  # fmt: skip
@click.option(
    "--chaos",
    metavar="SPEC",
    default="",
    callback=_chaos_spec,
    help="Make the store fail on purpose, to test producers and alarms (docs/cli.md).",
)
@click.pass_context
def serve(
    context: click.Context, /, take_over: bool, standby: bool, chaos: str, **options: Any
) -> None:
    """Run the daemon until SIGTERM or Ctrl-C.

    Without options it keeps everything under ./headgate-data and listens on 127.0.0.1:7440.

    \b
    Examples:
      headgate serve
      headgate serve --data /var/lib/headgate --store s3://my-bucket/headgate
      headgate serve --config /etc/headgate/headgate.toml --set log_level=debug
      headgate serve --standby --store s3://my-bucket/headgate
    """
    if take_over and standby:
        raise click.UsageError(
            "--take-over takes the store now and --standby waits for its owner: give one of them"
        )
    config = loaded(**options)
    from daemon.process.serve import run

    context.exit(run(config, take_over=take_over, standby=standby, chaos=chaos))
