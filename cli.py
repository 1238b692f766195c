"""The headgate command: its subcommands, each a file of ``commands/`` (docs/cli.md)."""

from __future__ import annotations

import importlib.metadata

import click

from commands.shell.group import Commands

# Each is `commands/NAME.py`, imported only when it is called; a test compares these sentences with
# the commands' own.
COMMANDS = {
    "serve": "Run the daemon until SIGTERM or Ctrl-C.",
    "status": "Show the state of the daemon, its store and its shards.",
    "top": "Show the state of the daemon, live.",
    "pressure": "Show why the level of pressure is what it is.",
    "groups": "Draw the upload groups as a tree.",
    "topics": "List, show, create, alter, trim and delete topics.",
    "routers": "List, show, create, delete, pause and resume routers.",
    "subscriptions": "List, show, change and seek subscriptions; settle blocked keys.",
    "push": "List push subscriptions, test their receivers, and let them go on.",
    "cursors": "List, show, create, set and delete cursors.",
    "produce": "Send records to a topic and wait until they are durable.",
    "import": "Import files and objects into a topic, each record exactly once.",
    "read": "Print the records of a topic as NDJSON.",
    "watch": "Print the records of topics as they are committed, as NDJSON.",
    "consume": "Print or work on the messages of a subscription, and acknowledge them.",
    "objects": "List, print and verify the objects in the store.",
    "check": "Compare the ledger with the store and report every problem.",
    "compact": "Write committed records into Iceberg tables.",
    "gc": "Delete objects and files that nothing needs any more.",
    "quarantine": "List, retry or give up records that a compaction could not read.",
    "recover": "Rebuild the ledger from the store.",
    "scaler": "Answer KEDA: how many consumers a subscription is worth.",
    "config": "Show the configuration, or print its documentation.",
    "simulate": "Compute what uploads of a load would cost, by three strategies.",
    "bench": "Measure this machine (needs the source checkout).",
}
EPILOG = "Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 unreachable, 4 degraded."


def main() -> None:
    """The console script."""
    headgate(prog_name="headgate")


def _version() -> str:
    try:
        return importlib.metadata.version("headgate")
    except importlib.metadata.PackageNotFoundError:
        return "0 (a checkout that is not installed)"


def _print_version(context: click.Context, _: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        click.echo(f"headgate {_version()}")
        context.exit()


@click.group(cls=Commands, summaries=COMMANDS, epilog=EPILOG)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_print_version,
    help="Print the version and exit.",
)  # fmt: skip
def headgate() -> None:
    """Durable topics over HTTP, batched across all cores into a few large objects on S3.

    \b
    Examples:
      headgate serve --data /var/lib/headgate
      headgate produce orders orders.ndjson
      headgate read orders --follow
    """


@headgate.command()
def version() -> None:
    """Print the version.

    \b
    Example:
      headgate version
    """
    click.echo(_version())


if __name__ == "__main__":
    main()
