"""``python -m tests.suites``: a foreign suite against a daemon; see ``make kafka-suite``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import click

from tests.e2e.kafka import kafka_daemon
from tests.suites.kafka import PASSED, SUITES, findings, listed

SHARDS = 2
SETTINGS = {"kafka_partitions": 4}  # as the suites have it in their own clusters


@click.command()
@click.argument("suite", type=click.Choice(sorted(SUITES)))
@click.argument("source", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--only", multiple=True, help="Runs this test; repeatable.")
@click.option("--all", "everything", is_flag=True, help="Runs those too that cannot pass.")
def main(suite: str, source: Path, only: tuple[str, ...], everything: bool) -> None:
    """Runs the tests of a list, and says what differs from it."""
    expected = listed(Path(__file__).with_name(f"{suite}.txt"))
    made = SUITES[suite](source.resolve())
    wanted = only or [each for each in made.tests() if everything or not expected.get(each)]
    folder = Path(tempfile.mkdtemp(prefix="headgate-suite-"))
    outcomes = []
    with kafka_daemon(folder / "data", shards=SHARDS, settings=SETTINGS) as daemon:
        for each in made.run(daemon, list(wanted)):
            outcomes.append(each)
            click.echo(f"{each.state:8}{each.name}")
            (folder / f"{each.name.replace('/', '-')}.log").write_text(each.text)
    click.echo(f"{sum(each.state == PASSED for each in outcomes)} of {len(outcomes)} passed")
    found = findings(expected, outcomes)
    for sentence in found:
        click.echo(sentence)
    if found:
        click.echo(f"{len(found)} findings; what was printed is in {folder}")
        sys.exit(1)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
