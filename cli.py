"""The headgate command: its subcommands, each a file in a folder of ``commands/`` (docs/cli.md)."""

from __future__ import annotations

import importlib.metadata

import click

from commands.shell.group import Commands

# The folder of `commands/FOLDER/NAME.py`, which is imported only when it is called, and a sentence;
# a test compares these with the commands' own.
COMMANDS = {
    "serve": ("running", "Run the daemon until SIGTERM or Ctrl-C."),
    "handover": ("running", "Drain the daemon, and let its standby take over immediately."),
    "status": ("running", "Show the state of the daemon, its store and its shards."),
    "top": ("running", "Show the state of the daemon, live."),
    "pressure": ("running", "Show why the level of pressure is what it is."),
    "groups": ("running", "Draw the upload groups as a tree."),
    "topics": ("managed", "List, show, create, alter, trim and delete topics."),
    "routers": ("managed", "List, show, create, delete, pause and resume routers."),
    "subscriptions": ("managed", "List, show, change and seek subscriptions; settle blocked keys."),
    "deadletters": ("managed", "List dead letters, and send them back where they came from."),
    "push": ("managed", "List push subscriptions, test their receivers, and let them go on."),
    "cursors": ("managed", "List, show, create, set and delete cursors."),
    "tokens": ("managed", "Create, list and revoke the tokens that clients need."),
    "produce": ("records", "Send records to a topic and wait until they are durable."),
    "import": (
        "records",
        "Import files, objects and topics of Kafka into a topic, each record exactly once.",
    ),
    "read": ("records", "Print the records of a topic as NDJSON."),
    "watch": ("records", "Print the records of topics as they are committed, as NDJSON."),
    "consume": (
        "records",
        "Print or work on the messages of a subscription, and acknowledge them.",
    ),
    "objects": ("stored", "List, print and verify the objects in the store."),
    "check": ("stored", "Compare the ledger with the store and report every problem."),
    "compact": ("stored", "Write committed records into Iceberg tables."),
    "gc": ("stored", "Delete objects and files that nothing needs any more."),
    "quarantine": ("stored", "List, retry or give up records that a compaction could not read."),
    "recover": ("stored", "Rebuild the ledger from the store."),
    "scaler": ("running", "Answer KEDA: how many consumers a subscription is worth."),
    "otlp": ("running", "Take OTLP's logs over gRPC, and append them to TOPIC."),
    "config": ("running", "Show the configuration, or print its documentation."),
    "simulate": ("running", "Compute what uploads of a load would cost, by three strategies."),
    "bench": ("running", "Measure this machine (needs the source checkout)."),
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
