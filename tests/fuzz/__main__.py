"""``python -m tests.fuzz``: a fuzz run of any length; see ``make fuzz``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from tests.fuzz.kafka import KafkaHunt
from tests.fuzz.run import Hunt, Options, run

SHOWN_MAX = 20


@click.command()
@click.option("--seconds", default=60.0, show_default=True, help="How long is sent.")
@click.option("--seed", default=1, show_default=True, help="What is sent follows from it.")
@click.option("--only", type=int, help="Sends this one stream of the seed.")
@click.option("--tokens", is_flag=True, help="The daemon needs tokens; not all are right.")
@click.option("--kafka", is_flag=True, help="Sends Kafka's protocol instead of HTTP.")
@click.option("--tls", is_flag=True, help="Sends it by TLS.")
def main(seconds: float, seed: int, only: int | None, tokens: bool, tls: bool, kafka: bool) -> None:
    """Sends what no client should to a daemon, and judges what it does."""
    if kafka and tls:
        raise click.UsageError("--kafka sends clear text; --tls cannot be used with it")
    folder = Path(tempfile.mkdtemp(prefix="headgate-fuzz-"))
    click.echo(f"seed {seed}, data in {folder}")
    report = run(
        Options(
            folder,
            seed,
            seconds,
            only=only,
            tokens=tokens,
            tls=tls,
            say=lambda line: click.echo(line, err=True),
        ),
        KafkaHunt if kafka else Hunt,
    )
    answers = ", ".join(f"{status} x{count}" for status, count in sorted(report.answers.items()))
    click.echo(
        f"{report.streams} connections, {report.requests} requests; answers: {answers or 'none'}"
    )
    click.echo(
        f"{report.records} records stored; at most {report.memory_bytes_max >> 20} MiB of memory,"
        f" the bound is {report.memory_bytes_bound >> 20} MiB"
    )
    if report.findings:
        for sentence in report.findings[:SHOWN_MAX]:
            click.echo(sentence)
        click.echo(f"{len(report.findings)} findings; the data stays in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)
    click.echo("no finding")


if __name__ == "__main__":
    main()
