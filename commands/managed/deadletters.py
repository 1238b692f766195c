"""``headgate deadletters``: list dead letters, and send them back where they came from; and what
became of them, for people.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice

import click
from msgspec.structs import asdict

from commands.client.http import Client
from commands.client.reader import since_ms
from commands.client.topics import state_of
from commands.output import (
    count_text,
    counted_text,
    limited,
    printable,
    say,
    show,
    table,
    time_text,
)
from commands.quantities import Duration
from commands.redriving.cursors import LetterCursors
from commands.redriving.letters import (
    Letter,
    LetterFilter,
    LetterReader,
    ListedLetter,
    OriginName,
    name_of,
)
from commands.redriving.origins import Quota, RedriveRules, Stop
from commands.redriving.progress import TAKEN_MAX, LetterProgress
from commands.redriving.redrive import MAX_TAKEN, Redrive, RedriveReport
from commands.shell.exits import CommandFailed
from commands.shell.options import (
    client_option,
    output_option,
    since_option,
    topic_argument,
    wait_option,
    yes_option,
)
from delivery.filters import Filter, FilterError
from shards.clock import wall_ms

ORIGIN_FIELDS = ("topic", "subscription")
LETTER_FIELDS = (*ORIGIN_FIELDS, "key", "reason")
LETTERS_MAX = 10_000


def _where(fields: Sequence[str]) -> Callable[..., dict[str, str]]:
    def parsed(_: click.Context, __: click.Parameter, values: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        for value in values:
            field, _equals, pattern = value.partition("=")
            if field not in fields or not pattern or field in found:
                wanted = ", ".join(f"{each}=PATTERN" for each in fields[:-1])
                raise click.BadParameter(
                    f"must be {wanted} or {fields[-1]}=PATTERN, each once, got {value!r}"
                )
            try:
                Filter(key=pattern).check()
            except FilterError as error:
                raise click.BadParameter(f"{field} {str(error).removeprefix('key ')}") from error
            found[field] = pattern
        return found

    return parsed


@click.group()
def deadletters() -> None:
    """List dead letters, and send them back where they came from.

    \b
    Examples:
      headgate deadletters ls bad-orders
      headgate deadletters redrive bad-orders
    """


@deadletters.command("ls")
@topic_argument
@click.option(
    "--where",
    multiple=True,
    callback=_where(LETTER_FIELDS),
    metavar="FIELD=PATTERN",
    help="Only letters that match: topic or subscription that they came from, key,"
    " reason; repeated, they match all of these.",
)
@click.option(
    "--partition", type=click.IntRange(0, 999), metavar="P", help="Only this partition of TOPIC."
)
@since_option
@click.option(
    "--limit",
    type=click.IntRange(1, LETTERS_MAX),
    default=100,
    show_default=True,
    metavar="N",
    help="Most letters to list.",
)
@client_option
@output_option
def deadletters_ls(
    topic: str,
    where: dict[str, str],
    partition: int | None,
    since: str | None,
    limit: int,
    client: Client,
    as_json: bool,
) -> None:
    """List the dead letters of a topic: where they came from, why, and whether they were redriven.

    \b
    Examples:
      headgate deadletters ls bad-orders
      headgate deadletters ls bad-orders --where subscription=billing --where 'reason=*503*'
    """
    try:
        from_ts = None if since is None else since_ms(since, wall_ms())
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--since") from error
    state = state_of(client, topic)
    heads = {each.partition: each.head_seq for each in state.partitions}
    if partition is not None and partition not in heads:
        raise CommandFailed(f"topic {topic} has no partition {partition}: it has {len(heads)}")
    listing = _Listing(client, topic, state.topic_id, LetterFilter(where))
    asked = heads if partition is None else {partition: heads[partition]}
    found = list(islice(listing.letters(asked, from_ts), limit + 1))
    show(found[:limit], as_json, letters_text)
    if len(found) > limit:
        say(f"there are more letters: --limit is {limit}")
    elif listing.others:
        say(f"{counted_text(listing.others, 'other record')} of {topic}: no dead letters")


class _Listing:
    """Letters, with what redrives have noted of them."""

    def __init__(self, client: Client, topic: str, topic_id: int, matches: LetterFilter) -> None:
        self.others = 0
        self._matches = matches
        self._reader = LetterReader(client, topic, topic_id, 0, say)
        self._cursors = LetterCursors(client, topic, topic_id, 0)
        self._noted: dict[tuple[int, OriginName], LetterProgress] = {}

    def letters(self, heads: dict[int, int], from_ts: int | None) -> Iterator[ListedLetter]:
        """The letters that match, partition by partition."""
        for partition, head in heads.items():
            for _, letter in self._reader.read(partition, 0, head, from_ts):
                self.others += letter is None
                if letter is not None and self._matches(letter):
                    yield self._listed(letter)

    def _listed(self, letter: Letter) -> ListedLetter:
        place = letter.partition, name_of(letter)
        if place not in self._noted:
            self._noted[place] = self._cursors.progress(*place)
        is_done = self._noted[place].is_done(letter.seq)
        return ListedLetter(**asdict(letter), redriven=is_done)


@deadletters.command("redrive")
@topic_argument
@click.option(
    "--where",
    multiple=True,
    callback=_where(ORIGIN_FIELDS),
    metavar="FIELD=PATTERN",
    help="Only letters that came from a matching topic or subscription; both, if both are given.",
)
@click.option(
    "--max", "most", type=click.IntRange(1), metavar="N", help="Most letters to send back."
)
@click.option(
    "--parallel",
    type=click.IntRange(1, TAKEN_MAX),
    default=100,
    show_default=True,
    metavar="N",
    help="Most letters that are sent back and not finished, at a time.",
)
@click.option(
    "--idle",
    "idle_s",
    type=Duration(0, 86_400),
    default="300s",
    show_default=True,
    metavar="DURATION",
    help="Leave the letters of a subscription of which none was finished for this long.",
)
@wait_option
@yes_option
@client_option
@output_option
def deadletters_redrive(
    topic: str,
    where: dict[str, str],
    most: int | None,
    parallel: int,
    idle_s: float,
    wait_s: float,
    yes: bool,
    client: Client,
    as_json: bool,
) -> None:
    """Send dead letters back to the subscriptions that they came from, each once.

    Each message is delivered once more, to its subscription only, and waited for. What is finished
    is noted in cursors of the daemon, so the same command continues after a kill. A message that
    fails again becomes another letter, for the next run.

    \b
    Examples:
      headgate deadletters redrive bad-orders
      headgate deadletters redrive bad-orders --where subscription=billing --max 10
    """
    if not yes and sys.stdin.isatty():
        click.confirm(f"Send the letters of {topic} back?", abort=True, err=True)
    stop = Stop()
    client.say = say
    client.sleep_ms = partial(stop.sleep_ms, client)
    rules = RedriveRules(parallel, Quota(most), wait_s * 1000, idle_s, stop)
    redrive = Redrive(client, topic, rules, where, say)
    before = {each: signal.signal(each, stop.signaled) for each in (signal.SIGINT, signal.SIGTERM)}
    try:
        redrive.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        show(redrive.report, as_json, redriven_text)
    _end(redrive.report)


def _end(report: RedriveReport) -> None:
    """Raises CommandFailed unless everything that was asked for was done."""
    if report.evicted:
        raise CommandFailed(
            f"{counted_text(report.evicted, 'letter')} could not be sent back: retention has"
            " removed the messages",
            hint=f"`headgate read {report.topic} --with-meta` prints what is in letters; no later"
            " run tries these again",
        )
    if report.stopped or any(each.reason not in ("", MAX_TAKEN) for each in report.origins):
        raise CommandFailed(
            f"left in {report.topic}: {counted_text(report.left, 'letter')}",
            hint="the same command continues; what was finished is not sent again",
        )


SHOWN_CHARACTERS = 40  # of a key or a reason


def letters_text(letters: Sequence[ListedLetter]) -> str:
    """A line for each letter."""
    rows = []
    for each in letters:
        origin = each.origin
        row = [f"{each.partition}:{each.seq}", f"{origin.topic}/{origin.subscription}"]
        row += [f"{origin.partition}:{origin.seq}", _short(each.key or "-")]
        row += [count_text(origin.attempts), time_text(each.ts)]
        row += ["yes" if each.redriven else "no", _short(origin.reason)]
        rows.append(row)
    head = ("letter", "from", "message", "key", "failed", "time", "redriven", "reason")
    return table(head, rows)


def redriven_text(report: RedriveReport) -> str:
    """A line for each origin, and the sums."""
    lines = []
    for each in report.origins:
        sums = [f"{count_text(each.redriven)} of {counted_text(each.letters, 'letter')} redriven"]
        sums += [f"{count_text(each.unfinished)} not finished yet"] if each.unfinished else []
        sums += [f"{count_text(each.evicted)} evicted"] if each.evicted else []
        sums += [f"{count_text(each.left)} left: {each.reason}"] if each.left else []
        lines.append(printable(f"{each.topic}/{each.subscription}: {', '.join(sums)}"))
        lines += [
            f"  letter {place.seq} of partition {place.partition}: its message was evicted"
            for place in each.evicted_letters
        ]
        lines += [
            f"  letter {place.seq} of partition {place.partition}: its message is in quarantine"
            for place in each.quarantined_letters
        ]
    if not report.origins:
        lines.append(f"no letters of {report.topic} are to be redriven")
    if report.others:
        lines.append(f"{counted_text(report.others, 'other record')}: no dead letters")
    return "\n".join(limited(lines))


def _short(text: str) -> str:
    return printable(text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}...")
