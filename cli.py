"""The headgate command: names, options and help of its subcommands.

What they do and print is in ``commands/``, one module per subject; exit codes and error
messages come from ``commands/exits.py`` alone. Documented in docs/cli.md.
"""

from __future__ import annotations

import importlib.metadata
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from commands import objects as objects_
from commands import records_in
from commands import status as status_
from commands import topics as topics_
from commands.client import Client
from commands.exits import DEGRADED, FAILED, UNREACHABLE, CommandFailed, Commands
from commands.options import (
    chaos_spec,
    client_option,
    loaded,
    output_option,
    parsed_by,
    place_options,
    serve_options,
    wait_option,
)
from commands.output import print_json, print_lines, progress, say, table
from commands.produce import BatchUnanswered, Resume, parse_resume, send
from commands.quarantine import quarantine
from commands.read import read
from daemon.config import KEYS
from daemon.config_docs import markdown

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
EPILOG = "Exit codes: 0 ok, 1 failed, 2 usage or configuration, 3 unreachable, 4 degraded."


def main() -> None:
    """The console script."""
    headgate(prog_name="headgate")


@click.group(cls=Commands, context_settings=CONTEXT, epilog=EPILOG)
def headgate() -> None:
    """Durable topics over HTTP, batched across all cores into a few large objects on S3."""


@headgate.command()
def version() -> None:
    """Print the version."""
    try:
        click.echo(importlib.metadata.version("headgate"))
    except importlib.metadata.PackageNotFoundError:
        click.echo("0 (a checkout that is not installed)")


@headgate.command()
@serve_options
@click.option(
    "--take-over", is_flag=True, help="Take the store from another data directory's daemon."
)
@click.option(
    "--chaos",
    metavar="SPEC",
    default="",
    callback=chaos_spec,
    help="Make the store fail on purpose (see docs/cli.md); for trials only.",
)
@click.pass_context
def serve(context: click.Context, /, take_over: bool, chaos: str, **options: Any) -> None:
    """Run the daemon until SIGTERM or Ctrl-C.

    Without options it keeps everything under ./headgate-data and listens on 127.0.0.1:7440.
    """
    config = loaded(**options)
    from daemon import serve as daemon  # its imports are of no use to other commands

    context.exit(daemon.run(config, take_over=take_over, chaos=chaos))


@headgate.command()
@place_options
@click.option("--take-over", is_flag=True, help="Also from a daemon that is known to run.")
@click.option("--allow-empty", is_flag=True, help="Also from a store that has nothing.")
@output_option
@click.pass_context
def recover(
    context: click.Context, /, take_over: bool, allow_empty: bool, as_json: bool, **options: Any
) -> None:
    """Rebuild the ledger from the store, into a data directory that no daemon uses.

    A ledger that is there is kept aside. Exit code 1 when an object is damaged or missing.
    """
    config = loaded(**options)
    from commands import recover as recover_  # its imports are of no use to other commands

    report = recover_.run(config, take_over=take_over, allow_empty=allow_empty)
    if as_json:
        print_json(report)
    else:
        click.echo(recover_.text(report))
    context.exit(0 if report.sound else FAILED)


@headgate.command()
@place_options
@click.option("--deep", is_flag=True, help="Read every object and verify each byte.")
@output_option
@click.pass_context
def check(context: click.Context, /, deep: bool, as_json: bool, **options: Any) -> None:
    """Compare the ledger with the store; works beside a daemon, and writes nothing.

    Exit code 1 when something is not as it must be; each such thing is named.
    """
    config = loaded(**options)
    from commands import check as check_  # its imports are of no use to other commands

    report = check_.check(config, deep=deep)
    if as_json:
        print_json(report)
    else:
        click.echo(check_.check_text(report))
    context.exit(0 if report.sound else FAILED)


@headgate.command()
@place_options
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted; write nothing.")
@click.option(
    "--accept-clock", is_flag=True, help="Trust the wall clock again, which status says has jumped."
)
@output_option
@click.pass_context
def gc(
    context: click.Context, /, dry_run: bool, accept_clock: bool, as_json: bool, **options: Any
) -> None:
    """Delete what nothing needs any more, beside a daemon or without one.

    That is: objects that are compacted, evicted or of deleted topics; orphans, which were put and
    never committed; former snapshots and dropped files of the lake. One goes when gc_grace_ms is
    over, after an entry of the owner's log names it. Exit code 1 when the lake has a problem.
    """
    if dry_run and accept_clock:
        raise click.UsageError("--dry-run writes nothing, and --accept-clock does")
    config = loaded(**options)
    from commands import check as check_  # its imports are of no use to other commands

    report = check_.collect(config, dry_run=dry_run, accept_clock=accept_clock)
    if as_json:
        print_json(report)
    else:
        click.echo(check_.collect_text(report))
    context.exit(0 if report.sound else FAILED)


@headgate.command()
@place_options
@click.option("--master", metavar="URL", help="Spark's master; local, on all CPUs, by default.")
@click.option("--topic", "chosen", metavar="TOPIC", multiple=True, help="Only these; repeatable.")
@click.option("--dry-run", is_flag=True, help="Only say what would be compacted; write nothing.")
@click.option("--check", is_flag=True, help="Only say whether what it needs is installed.")
@output_option
@click.pass_context
def compact(
    context: click.Context,
    /,
    master: str | None,
    chosen: tuple[str, ...],
    dry_run: bool,
    check: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Compact objects into Iceberg tables; works beside a daemon and without one.

    Covers everything acknowledged before it began, once, however often it is killed and run.
    Exit code 1 when an object is damaged or a topic could not be compacted: the rest is done.
    """
    config = loaded(**options)
    from commands import compact as compact_  # its imports are of no use to other commands

    if check:
        found = compact_.needs()
        print_json(found) if as_json else click.echo(compact_.needs_text(found))
        return
    report = compact_.compact(config, master=master, chosen=frozenset(chosen), dry_run=dry_run)
    if as_json:
        print_json(report)
    else:
        click.echo(compact_.compact_text(report))
    context.exit(0 if report.sound else FAILED)


@headgate.command()
@client_option
@output_option
@click.pass_context
def status(context: click.Context, client: Client, as_json: bool) -> None:
    """Show how the daemon is doing; exit code 4 when it is degraded."""
    state, body = status_.fetch(client)
    if as_json:
        print_json(body)
    else:
        click.echo(status_.status_text(state))
    for trouble in state.troubles:
        click.echo(f"headgate: degraded: {trouble}", err=True)
    context.exit(DEGRADED if state.troubles else 0)


@headgate.command()
@client_option
@output_option
def groups(client: Client, as_json: bool) -> None:
    """Draw the upload groups as a buddy tree; * has the turn to upload."""
    state, body = status_.fetch(client)
    if as_json:
        print_json(body["groups"])
    else:
        click.echo(status_.groups_text(state))


@headgate.group()
def topics() -> None:
    """List, show, create, alter, trim and delete topics."""


@topics.command("ls")
@client_option
@output_option
def topics_ls(client: Client, as_json: bool) -> None:
    """List all topics."""
    states = topics_.fetch_all(client)
    if as_json:
        print_json(states)
    else:
        click.echo(topics_.list_text([topics_.typed(client, state) for state in states]))


@topics.command("show")
@click.argument("topic")
@client_option
@output_option
def topics_show(topic: str, client: Client, as_json: bool) -> None:
    """Show a topic's settings and partitions."""
    _show(client, topics_.fetch_one(client, topic), as_json)


@topics.command("create")
@click.argument("topic")
@topics_.setting_options
@client_option
@output_option
def topics_create(topic: str, client: Client, as_json: bool, **settings: Any) -> None:
    """Create a topic. One that exists with the same settings is left as it is."""
    _show(client, topics_.create(client, topic, topics_.settings_of(settings)), as_json)


@topics.command("alter")
@click.argument("topic")
@topics_.setting_options
@client_option
@output_option
def topics_alter(topic: str, client: Client, as_json: bool, **settings: Any) -> None:
    """Change the given settings of a topic; partitions only grow. The value none unsets.

    Columns that are not given stay; NAME:none removes one, which is then no longer filled.
    """
    chosen = topics_.settings_of(settings)
    if not chosen:
        raise click.UsageError("give at least one setting to change")
    _show(client, topics_.alter(client, topic, chosen), as_json)


@topics.command("trim")
@click.argument("topic")
@click.option(
    "--before-seq",
    type=click.IntRange(0),
    required=True,
    metavar="N",
    help="The first offset that can still be read.",
)
@click.option(
    "--partition",
    type=click.IntRange(0, 999),
    default=0,
    show_default=True,
    metavar="P",
    help="The one that is trimmed.",
)
@client_option
@output_option
def topics_trim(
    topic: str, before_seq: int, partition: int, client: Client, as_json: bool
) -> None:  # fmt: skip
    """Drop the oldest records of a partition; rows of its table stay. Never taken back."""
    state = topics_.trim(client, topic, partition, before_seq)
    if as_json:
        print_json(state)
    else:
        click.echo(topics_.trim_text(client, topic, state))


@topics.command("delete")
@click.argument("topic")
@click.option("--yes", is_flag=True, help="Do not ask. It is asked on a terminal only.")
@client_option
def topics_delete(topic: str, yes: bool, client: Client) -> None:
    """Delete a topic with all its records."""
    if not yes and sys.stdin.isatty():
        click.confirm(f"Delete {topic} with all its records?", abort=True, err=True)
    topics_.delete(client, topic)


def _show(client: Client, state: msgspec.Raw, as_json: bool) -> None:
    if as_json:
        print_json(state)
    else:
        click.echo(topics_.show_text(topics_.typed(client, state)))


@headgate.group()
def objects() -> None:
    """List, print and verify the objects in the store, beside a running daemon or without."""


@objects.command("ls")
@place_options
@output_option
def objects_ls(as_json: bool, **options: Any) -> None:
    """List all existing objects in the order of their commits."""
    with objects_.opened_ledger(loaded(**options)) as ledger:
        if not as_json:
            click.echo(objects_.head_text())
            for row in objects_.rows(ledger):
                click.echo(objects_.row_text(row))
            return
        before = "["
        for row in objects_.rows(ledger):
            click.echo(before + "\n  " + msgspec.json.encode(row).decode(), nl=False)
            before = ","
        click.echo("[]" if before == "[" else "\n]")


@objects.command("cat")
@click.argument("key")
@place_options
def objects_cat(key: str, **options: Any) -> None:
    """Print an object's records as NDJSON, with topic, partition and offset."""
    config = loaded(**options)
    with objects_.opened_ledger(config) as ledger, objects_.opened_store(config) as store:
        for line in objects_.lines_of(ledger, store, objects_.row_of(ledger, key)):
            print_lines([line])


@objects.command("verify")
@click.argument("keys", metavar="[KEY]...", nargs=-1)
@place_options
@output_option
@click.pass_context
def objects_verify(
    context: click.Context, /, keys: tuple[str, ...], as_json: bool, **options: Any
) -> None:
    """Check format and checksums of the given objects, or of all; exit code 1 if one is bad."""
    config = loaded(**options)
    with objects_.opened_ledger(config) as ledger, objects_.opened_store(config) as store:
        rows = [objects_.row_of(ledger, key) for key in keys] or list(objects_.rows(ledger))
        bad = []
        with progress(len(rows), "objects") as advance:
            for row in rows:
                found = objects_.problems_of(store, row)
                if found:
                    bad.append(objects_.BadObject(row.key, found))
                advance(1)
    size = sum(row.size_bytes for row in rows)
    if as_json:
        print_json({"objects": len(rows), "bytes": size, "bad": bad})
    else:
        for item in bad:
            click.echo("\n".join(f"BAD  {problem}" for problem in item.problems))
        click.echo(f"{len(rows)} objects, {size:,} bytes, {len(bad)} bad")
    context.exit(FAILED if bad else 0)


headgate.add_command(quarantine)


@headgate.command()
@click.argument("topic")
@click.argument("file", type=click.File("rb", lazy=False), default="-")
@click.option(
    "--format",
    "form",
    type=click.Choice(["ndjson", "lines", "json"]),
    default="ndjson",
    show_default=True,
    help="A JSON value a line, text lines, or one JSON document (an array's elements).",
)
@click.option("--key", "key_field", metavar="FIELD", help="The field of a record that is its key.")
@click.option("--partition", type=click.IntRange(0, 999), help="Instead of choosing by key.")
@click.option(
    "--batch",
    type=click.IntRange(1, 1_000_000),
    default=1_000,
    show_default=True,
    metavar="N",
    help="Most records in a request.",
)
@click.option(
    "--batch-bytes",
    type=click.IntRange(1, 1 << 30),
    default=1 << 20,
    show_default=True,
    metavar="N",
    help="Most bytes of records in a request; a larger record goes alone.",
)
@click.option(
    "--resume",
    metavar="RUN:LINE",
    callback=parsed_by(parse_resume),
    help="Go on where a run of this command ended, with its file and options.",
)
@wait_option
@client_option
@output_option
def produce(
    topic: str,
    file: Any,
    form: records_in.Format,
    key_field: str | None,
    partition: int | None,
    batch: int,
    batch_bytes: int,
    resume: Resume | None,
    wait_s: float,
    client: Client,
    as_json: bool,
) -> None:
    """Send the records of FILE (or of stdin) to TOPIC and wait until they are durable.

    A daemon that restarts or is full is waited for; a run that ends early names where to go on.

    \b
    Examples:
      headgate produce orders orders.ndjson --key customer
      headgate produce orders orders.ndjson --key customer --resume 5f0c99e1:3005
    """
    client.say = say
    begin = resume or Resume(secrets.token_hex(12), 1)
    source = (
        item
        for item in records_in.records(file, form, key_field)
        if item is None or item.line >= begin.line
    )
    with progress(records_in.size_of(file), "sent") as advance:
        summary, problem = send(
            client,
            topic,
            records_in.batched(source, batch, batch_bytes),
            run_id=begin.run_id,
            patience_ms=wait_s * 1000,
            partition=partition,
            progress=advance,
        )
    if as_json:
        print_json(summary)
    elif summary.records or problem is None:
        click.echo(summary.text())
    if problem is not None:
        raise CommandFailed(
            f"{getattr(file, 'name', 'stdin')}: {problem}",
            hint=f"the {summary.records} records before it are stored, nothing after it is; the"
            f" same command with --resume {(summary.error or {})['resume']} goes on there",
            exit_code=UNREACHABLE if isinstance(problem, BatchUnanswered) else FAILED,
        ) from problem


headgate.add_command(read)


@headgate.command(context_settings={"ignore_unknown_options": True, "help_option_names": []})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def bench(context: click.Context, /, arguments: tuple[str, ...]) -> None:
    """Measure this machine, in a checkout: what `make bench` runs, with its arguments."""
    folder = Path(__file__).resolve().parent
    if not (folder / "bench" / "__main__.py").is_file():
        raise CommandFailed(
            f"{folder} has no folder bench/: it is in the checkout, not in the installed package",
            hint="clone the repository and run `make bench` there",
        )
    command = [sys.executable, "-m", "bench", *arguments]
    context.exit(subprocess.run(command, cwd=folder, check=False).returncode)


@headgate.group("config")
def config_() -> None:
    """Show the configuration."""


@config_.command("show")
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@serve_options
@output_option
def config_show(origin: bool, as_json: bool, **options: Any) -> None:
    """Print what `headgate serve` with the same options and environment would run with."""
    config = loaded(**options)
    values = {key: getattr(config, key) for key in KEYS}
    if as_json and origin:
        print_json(
            {key: {"value": value, "origin": config.origins[key]} for key, value in values.items()}
        )
    elif as_json:
        print_json(values)
    elif origin:
        rows = [(key, value, config.origins[key]) for key, value in values.items()]
        click.echo(table(("key", "value", "origin"), rows))
    else:
        click.echo(table(("key", "value"), list(values.items())))


@config_.command("docs")
def config_docs() -> None:
    """Print docs/configuration.md, which is generated from the table of keys."""
    click.echo(markdown(), nl=False)


if __name__ == "__main__":
    main()
