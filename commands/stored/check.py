"""``headgate check``: compares ledger and store (``daemon/upkeep/check.py``)."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import click

from commands.output import (
    bytes_text,
    count_text,
    duration_text,
    limited,
    progress,
    show,
)
from commands.shell.exits import FAILED
from commands.shell.options import loaded, output_option, place_options
from daemon.upkeep.check import CheckReport, StoreCheck
from daemon.upkeep.directory import open_config_store
from daemon.upkeep.exclusive import opened_ledger
from daemon.upkeep.recover import sleep_s


@click.command()
@place_options
@click.option("--deep", is_flag=True, help="Read every object and verify every byte.")
@output_option
@click.pass_context
def check(context: click.Context, /, deep: bool, as_json: bool, **options: Any) -> None:
    """Compare the ledger with the store and report every problem.

    It writes nothing, and works with and without a running daemon. Exit code 1 if there is a
    problem.

    \b
    Examples:
      headgate check --data /var/lib/headgate
      headgate check --data /var/lib/headgate --deep -o json
    """
    config = loaded(**options)
    with opened_ledger(config) as access, closing(open_config_store(config)) as store:
        compared = StoreCheck(config, access, store, sleep_s, deep=deep)
        report = compared.run(lambda length: progress(length, "objects"))
    show(report, as_json, _text)
    context.exit(0 if report.sound else FAILED)


def _text(report: CheckReport) -> str:
    """Counts, then each kind of problem with what to do."""
    read = "each read" if report.deep else "sizes compared; --deep reads them"
    where = f"a daemon runs, pid {report.daemon_pid}" if report.daemon_pid else "no daemon runs"
    lines = [
        f"{report.data_dir} against {report.store} ({where})",
        f"  objects   {count_text(report.objects)} of {bytes_text(report.object_bytes)}, {read}",
        (
            f"  others    {count_text(report.orphans)} orphans, {count_text(report.in_flight)} in"
            f" flight, {count_text(report.named_for_deletion)} named for deletion,"
            f" {count_text(report.foreign)} foreign"
        ),
        f"  offsets   {count_text(report.gaps_declared)} declared gaps",
    ]
    last = report.last_entry
    if last is not None:
        lines.append(
            f"  log       {count_text(report.entries)} entries, the last ({last.kind})"
            f" {duration_text(last.age_s * 1000)} ago by {last.host}, pid {last.pid}"
        )
    kinds = dict.fromkeys(problem.kind for problem in report.problems)
    for kind in kinds:
        some = [problem for problem in report.problems if problem.kind == kind]
        lines.append(f"{kind.upper()}: {some[0].hint}")
        lines += [f"  {line}" for line in limited([problem.problem for problem in some])]
    total = len(report.problems) + report.problems_more
    many = f"{count_text(total)} problem{'s' if total != 1 else ''}"
    lines.append(f"{'sound' if report.sound else many}, {report.seconds:.1f} s")
    return "\n".join(lines)
