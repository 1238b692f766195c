"""Dead letters, and what became of them, for people."""

from __future__ import annotations

from collections.abc import Sequence

from commands.output import count_text, counted_text, limited, printable, table, time_text
from commands.redriving.letters import ListedLetter
from commands.redriving.redrive import RedriveReport

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
