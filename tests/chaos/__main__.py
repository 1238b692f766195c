"""``python -m tests.chaos``: a chaos run of any length; see ``make chaos``."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
from pathlib import Path

import click

from tests.chaos.pair import bucket_in
from tests.chaos.run import (
    only_kafka,
    only_library,
    only_push,
    only_soak,
    only_subscriptions,
    run,
    under_pressure,
    with_pair,
    with_recreation,
)
from tests.chaos.world import SPEC, Options

SHOWN_MAX = 20


@click.command()
@click.option(
    "--seconds", default=60.0, show_default=True, help="How long to kill and fault the daemon."
)
@click.option("--seed", default=1, show_default=True, help="The plan of kills follows from it.")
@click.option("--kills", default=0, help="End earlier, after this many kills.")
@click.option("--shards", default=3, show_default=True)
@click.option("--spec", default=SPEC, show_default=True, help="The store's faults; '' for none.")
@click.option("--no-lake", is_flag=True, help="Without compactions and collections.")
@click.option("--pressure", is_flag=True, help="Small rings, and a store that is slow and busy.")
@click.option("--subscriptions", is_flag=True, help="Subscriptions and little else.")
@click.option("--push", is_flag=True, help="Push subscriptions and little else.")
@click.option("--kafka", is_flag=True, help="Kafka's clients and little else.")
@click.option("--library", is_flag=True, help="The Python client and little else.")
@click.option("--recreate", is_flag=True, help="What is used is deleted and created again.")
@click.option("--soak", is_flag=True, help="Fifty subscriptions, and no kills.")
@click.option("--pair", is_flag=True, help="An owner and its standby, on MinIO.")
@click.option("--no-steps", is_flag=True, help="Only store faults, no kills.")
def main(
    seconds: float, seed: int, kills: int, shards: int, spec: str, no_lake: bool, pressure: bool,
    subscriptions: bool, push: bool, kafka: bool, library: bool, recreate: bool, soak: bool,
    pair: bool, no_steps: bool,
) -> None:  # fmt: skip
    """Runs kills and faults under load, then checks all answers and all stored records."""
    folder = Path(tempfile.mkdtemp(prefix="headgate-chaos-"))
    click.echo(f"seed {seed}, history and log in {folder}")
    options = Options(
        folder, seed, seconds, kills, shards, spec, not no_steps, not no_lake,
        say=lambda line: click.echo(line, err=True),
    )  # fmt: skip
    if pressure:
        options = under_pressure(options)
    if subscriptions:
        options = only_subscriptions(options)
    if push:
        options = only_push(options)
    if kafka:
        options = only_kafka(options)
    if library:
        options = only_library(options)
    if recreate:
        options = with_recreation(options)
    if soak:
        options = only_soak(options)
    try:
        with contextlib.ExitStack() as stack:
            if pair:
                options = with_pair(options, stack.enter_context(bucket_in(folder)))
            report = run(options)
    except Exception:
        click.echo(f"the run broke; history and log stay in {folder}", err=True)
        raise
    done = ", ".join(f"{what} x{count}" for what, count in sorted(report.acts.items()))
    click.echo(f"done: {done or 'nothing'}; {report.kills} processes or runs killed")
    click.echo(
        f"requests: {report.requests} answered, {report.acknowledged} acknowledged, refused"
        f" {report.refused}, {report.unknown} without an answer; {report.records_kept} records"
        f" kept; longest wait for an answer {report.wait_ms_max:.0f} ms"
    )
    click.echo(
        f"lake: {', '.join(f'{what} x{count}' for what, count in sorted(report.commands.items()))};"
        f" {report.rows_compacted} rows compacted, {report.objects_collected} objects collected,"
        f" {report.records_evicted} records evicted, {report.whole_readings} whole readings"
    )
    rungs = ", ".join(f"{name} x{count}" for name, count in sorted(report.rungs.items()))
    click.echo(
        f"governor: {rungs or 'no reaction'}; windows from {min(report.windows_ms, default=0):.1f}"
        f" to {max(report.windows_ms, default=0):.1f} ms"
    )
    click.echo(f"watchers: {report.streams} streams, {report.records_watched} records seen")
    consumed = ", ".join(f"{count} {what}" for what, count in sorted(report.consumed.items()))
    click.echo(f"consumers: {consumed or 'none'}")
    of_kafka = ", ".join(f"{count} {what}" for what, count in sorted(report.kafka.items()))
    click.echo(f"Kafka's clients: {of_kafka}")
    of_library = ", ".join(f"{count} {what}" for what, count in sorted(report.library.items()))
    click.echo(f"the Python client: {of_library}")
    pushed = ", ".join(f"{count} {what}" for what, count in sorted(report.pushed.items()))
    click.echo(f"receiver: {pushed or 'none'}")
    if report.contradictions:
        for sentence in report.contradictions[:SHOWN_MAX]:
            click.echo(sentence)
        click.echo(f"{len(report.contradictions)} contradictions; the history stays in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)
    click.echo("no contradiction")


if __name__ == "__main__":
    main()
