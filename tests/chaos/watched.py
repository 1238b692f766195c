"""The rules for watchers, by the word that a contradiction begins with. Pure.

- again: within a connection, each record is after the position and after the record before it.
- jumped: a watcher continues where its last position says, and no position goes back.
- ahead: no position is beyond the last record.
- unwanted: a record passes the watcher's filters.
- unseen: in the end, a watcher is at the last record.
- lagged: only watchers of a lossy topic are told that they lagged.

The checker's rules for pages apply too: what a watcher saw is what is kept (changed), and it is led
past a kept record that passes its filters only by a tombstone that covers it (skipped). Together
they say: each record once and in order, or a declared tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.chaos.history import Page, Place, passes
from tests.chaos.known import LAGGED, Known


def _again(known: Known) -> Iterator[str]:
    for page in _pages(known):
        last = page.from_seq
        for seq, record in page.records:
            if seq <= last:
                yield (f"again: {page.reader} got {record} at {(page.place, seq)} after {last}")
            last = seq


def _jumped(known: Known) -> Iterator[str]:
    settled: dict[tuple[str, Place], int] = {}
    latest: dict[tuple[str, Place], int] = {}
    for page in _pages(known):
        key = (page.reader, page.place)
        expected = {settled.get(key), latest.get(key)} - {None}
        if not expected and not known.watchers[page.reader].tail:
            expected = {0}
        if expected and page.from_seq not in expected:
            yield (
                f"jumped: {page.reader} continued in {page.place} after {page.from_seq}, and was at"
                f" {settled.get(key, 0)}"
            )
        if page.next_from_seq < page.from_seq:
            yield (
                f"jumped: {page.reader} was led back from {page.from_seq} to"
                f" {page.next_from_seq} in {page.place}"
            )
        latest[key] = page.next_from_seq
        if page.settled:
            settled[key] = page.next_from_seq


def _ahead(known: Known) -> Iterator[str]:
    for page in _pages(known):
        end = known.end(page.place)
        if page.next_from_seq > end:
            yield f"ahead: {page.reader} is at {page.next_from_seq} of {page.place}, of {end}"


def _unwanted(known: Known) -> Iterator[str]:
    for page in _pages(known):
        filters = known.watchers[page.reader].filters
        for seq, record in page.records:
            if not passes(filters, record):
                yield f"unwanted: {page.reader} of {filters} got {record} at {(page.place, seq)}"


def _unseen(known: Known) -> Iterator[str]:
    at: dict[tuple[str, Place], int] = {}
    for page in _pages(known):
        if page.settled:
            at[page.reader, page.place] = page.next_from_seq
    for watcher in known.watchers.values():
        for place in watcher.places:
            end, seen = known.end(place), at.get((watcher.reader, place), 0)
            if seen < end and not (watcher.tail and (watcher.reader, place) not in at):
                yield f"unseen: {watcher.reader} ended at {seen} of {place}, which has {end}"


def _lagged(known: Known) -> Iterator[str]:
    for page in _pages(known):
        if page.gap is not None and page.reason == LAGGED and page.place[0] not in known.lossy:
            yield f"lagged: {page.reader} was told {page.gap} of {page.place}, which is not lossy"


def _pages(known: Known) -> Iterator[Page]:
    return (page for page in known.pages if page.reader in known.watchers)


RULES = (_again, _jumped, _ahead, _unwanted, _unseen, _lagged)
