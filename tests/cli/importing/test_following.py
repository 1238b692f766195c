"""Files that rotate, with a clock of the test: when a file has ended, and what is found of it."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from commands.client.http import Client
from commands.importing import following
from commands.importing.budget_leases import Leases
from commands.importing.chain_sender import ImportDaemon
from commands.importing.flow import Limits
from commands.importing.following import (
    FOLLOWED_MAX,
    Following,
    FollowingObjects,
    TooManyFiles,
)
from commands.importing.governed import ImportParts, ImportPlan, TopicTarget
from commands.importing.importer import Importer
from commands.importing.names import SourceCursors
from commands.importing.reading.buckets import Buckets, Endpoint
from commands.importing.reading.finding import NotFound, find
from commands.importing.reading.raw import LocalFile
from commands.importing.reading.rules import Rules
from commands.importing.source import ROTATED_QUIET_S, SourceImport
from compaction.access.connection import DaemonAddress
from tests.cli.importing.fixed_budget import FixedBudget
from tests.cli.importing.test_import import Cursors
from tests.minio import Bucket
from tests.scripted import Answer, refusal, scripted

CLOSE = {"Connection": "close"}


def plan(*, follows: bool = True, restarts: bool = False) -> ImportPlan:
    return ImportPlan(
        TopicTarget("t", 7), None, None, "auto", Limits(1 << 20, 1_000), restarts, follows, Rules
    )


class Clock:
    """Monotonic seconds, as a test says."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def pass_s(self, seconds: float) -> bool:
        self.now_s += seconds
        return True


async def until(look: Callable[[], bool]) -> None:
    for _ in range(12_000):
        if look():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("waited for a minute")


def followed(
    path: Path, script: Cursors, act: Callable[[SourceImport, Clock], object], **how: bool
) -> SourceImport:
    """Follows a file while ``act`` runs, which is a coroutine function, up to its end."""
    clock = Clock()

    async def work(url: str) -> SourceImport:
        with ThreadPoolExecutor(1) as threads, Client(url) as client:
            daemon = ImportDaemon(
                url, DaemonAddress.of(url), FixedBudget(1 << 20), 60, clock, print
            )
            source = SourceImport(
                LocalFile(str(path)),
                plan(**how),
                ImportParts(
                    daemon, SourceCursors(client, 0), Leases(daemon.budget), threads,
                    lambda: None, lambda count: None,
                ),
            )  # fmt: skip
            running = asyncio.create_task(source.run())
            await act(source, clock)  # type: ignore[misc]
            await running
            return source

    with scripted(script) as server:
        return asyncio.run(work(server.url))


def test_a_rotated_file_is_read_until_it_was_quiet_and_then_with_its_last_line(
    tmp_path: Path,
) -> None:
    path, script = tmp_path / "log", Cursors()
    path.write_text("1\n2")

    async def act(source: SourceImport, clock: Clock) -> None:
        await until(lambda: script.stored == [1])
        source.is_rotated = True
        clock.now_s += ROTATED_QUIET_S - 1
        with path.open("a") as file:
            file.write("2\n3")
        await until(lambda: script.stored == [1, 22])
        assert source.report.state == "stopped"
        clock.now_s += ROTATED_QUIET_S + 1

    source = followed(path, script, act)
    assert source.report.state == "done" and script.stored == [1, 22, 3]


def test_a_file_waits_for_its_first_line_before_it_has_a_cursor(tmp_path: Path) -> None:
    path, script = tmp_path / "log", Cursors()
    path.write_text('{"a":')

    async def act(source: SourceImport, clock: Clock) -> None:
        await asyncio.sleep(0)
        assert not script.positions
        with path.open("a") as file:
            file.write("1}\n")
        await until(lambda: script.stored == [{"a": 1}])
        source.stop()

    assert followed(path, script, act).report.state == "stopped"
    assert len(script.positions) == 1


def test_a_connection_that_the_daemon_closes_while_nothing_is_sent_is_not_a_failure(
    tmp_path: Path,
) -> None:
    path, script = tmp_path / "log", Cursors(lambda number, call: Answer(200, {}, CLOSE))
    path.write_text("1\n")

    async def act(source: SourceImport, clock: Clock) -> None:
        for number in range(2, 5):
            await until(lambda: len(script.produced) == number - 1)  # noqa: B023
            await until(lambda: source._leases.leased == 0)  # it has the answer, too
            clock.now_s += 1_000  # more than its patience, but nothing was asked meanwhile
            with path.open("a") as file:
                file.write(f"{number}\n")
        await until(lambda: len(script.produced) == 4)
        source.stop()

    source = followed(path, script, act)
    assert source.failure is None and source.report.retries == 0


def test_a_truncated_file_ends_and_says_that_it_begins_anew(tmp_path: Path) -> None:
    path, script = tmp_path / "log", Cursors()
    path.write_text("1\n2\n")

    async def act(source: SourceImport, clock: Clock) -> None:
        await until(lambda: script.stored == [1, 2])
        path.write_text("")

    source = followed(path, script, act)
    assert source.begins_anew and source.failure is None

    # The same first line, and longer than before: only who has seen the truncation knows.
    path.write_text("1\n2\n3\n")

    async def stop(source: SourceImport, clock: Clock) -> None:
        await until(lambda: len(script.stored) == 5)
        source.stop()

    followed(path, script, stop, restarts=True)
    assert script.stored == [1, 2, 1, 2, 3]


def test_a_file_that_was_truncated_in_a_downtime_begins_anew(tmp_path: Path) -> None:
    path, script = tmp_path / "log", Cursors()
    path.write_text("1\n2\n3\n")

    async def act(source: SourceImport, clock: Clock) -> None:
        await until(lambda: script.stored == [1, 2, 3])
        source.stop()

    followed(path, script, act)
    path.write_text("1\n5\n")

    async def again(source: SourceImport, clock: Clock) -> None:
        await until(lambda: script.stored == [1, 2, 3, 1, 5])
        source.stop()

    followed(path, script, again)


def test_a_file_that_does_not_grow_is_read_once_to_its_end(tmp_path: Path) -> None:
    path, script = tmp_path / "list.json", Cursors()
    path.write_text("[1, 2]")

    async def act(source: SourceImport, clock: Clock) -> None:
        pass

    assert followed(path, script, act).report.state == "done"
    assert script.stored == [1, 2]


def test_a_new_file_with_the_inode_of_one_that_was_imported_is_imported_too(tmp_path: Path) -> None:
    """File systems give the inode of a deleted file to the next one, often between two looks."""
    document, packed = tmp_path / "a.json", tmp_path / "b.gz"
    document.write_text("[1, 2]")
    packed.write_bytes(gzip.compress(b"10\n11\n"))
    script = Cursors()

    async def work(url: str) -> None:
        with Client(url) as client:
            daemon = ImportDaemon(
                url, DaemonAddress.of(url), FixedBudget(1 << 20), 60, Clock(), print
            )
            importer = Importer(plan(), daemon, SourceCursors(client, 0), 1, lambda count: None)
            running = asyncio.create_task(Following(importer, [f"{tmp_path}/*"], 1).run())
            await until(lambda: len(script.stored) == 4)
            anew(document, b"[3, 4]")
            anew(packed, gzip.compress(b"10\n12\n"))  # of the same name and first line
            await until(lambda: len(script.stored) == 8)
            importer.stop()
            await running
            assert [each.error for each in importer.reports if each.error] == []

    with scripted(script) as server:
        asyncio.run(work(server.url))
    assert sorted(script.stored) == [1, 2, 3, 4, 10, 10, 11, 12]


def anew(path: Path, content: bytes) -> None:
    """Other content under the same inode, in one step."""
    assert path.stat().st_size == len(content)
    with path.open("r+b", buffering=0) as file:
        file.write(content)


def test_objects_that_appear_are_imported_in_any_order_of_keys_and_forgotten_when_they_go(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(following, "LIST_S", 0.02)
    script, said = Cursors(), list[str]()

    def put(key: str, body: bytes) -> None:
        bucket.client.put_object(Bucket=bucket.bucket, Key=key, Body=body)

    def cursors() -> list[str]:
        return sorted(name.rpartition(":")[2] for name in script.positions)

    async def work(url: str) -> None:
        with (
            Client(url) as client,
            contextlib.closing(Buckets(Endpoint(bucket.endpoint_url, None), 2)) as buckets,
        ):
            clock = Clock()
            daemon = ImportDaemon(
                url, DaemonAddress.of(url), FixedBudget(1 << 20), 60, clock, print
            )
            importer = Importer(plan(), daemon, SourceCursors(client, 0), 2, lambda count: None)
            objects = FollowingObjects(
                importer, buckets, [f"s3://{bucket.bucket}/in/"], 2, 60, clock, said.append
            )
            running = asyncio.create_task(objects.run())
            await until(lambda: len(script.stored) == 2)
            put("in/a", b"3\n")  # before all others
            put("in/m", b"4\n")  # another one under its key
            await until(lambda: len(script.stored) == 4)
            bucket.client.delete_object(Bucket=bucket.bucket, Key="in/z")
            await until(lambda: cursors() == ["a", "m"])
            put("in/z", b"2\n")
            await until(lambda: len(script.stored) == 5)
            importer.stop()
            await running
            assert (importer.totals.failed, importer.totals.sources, said) == (0, 5, [])

    put("in/m", b"1\n")
    put("in/z", b"2\n")
    with scripted(script) as server:
        asyncio.run(work(server.url))
    assert sorted(script.stored[:2]) == [1, 2] and sorted(script.stored) == [1, 2, 2, 3, 4]


def test_what_waits_in_a_prefix_is_in_the_lag(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    for key in "abc":
        bucket.client.put_object(Bucket=bucket.bucket, Key=key, Body=b"1\n" * 3)
    refuses = True
    script = Cursors(lambda n, call: refusal(503, "busy") if refuses else None)

    async def work(url: str) -> None:
        nonlocal refuses
        with (
            Client(url) as client,
            contextlib.closing(Buckets(Endpoint(bucket.endpoint_url, None), 1)) as buckets,
        ):
            clock = Clock()
            daemon = ImportDaemon(
                url, DaemonAddress.of(url), FixedBudget(1 << 20), 60, clock, print
            )
            importer = Importer(plan(), daemon, SourceCursors(client, 0), 1, lambda count: None)
            objects = FollowingObjects(
                importer, buckets, [f"s3://{bucket.bucket}/"], 1, 60, clock, print
            )
            running = asyncio.create_task(objects.run())
            await until(lambda: len(script.produced) > 0)
            assert [each["size_bytes"] for each in script.sources.values()] == [6, 6, 6]
            refuses = False
            await until(lambda: clock.pass_s(0.1) and len(script.stored) == 9)
            importer.stop()
            await running

    with scripted(script) as server:
        asyncio.run(work(server.url))


def test_objects_that_are_replaced_or_deleted_after_they_were_listed_do_not_end_a_follower(
    bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(following, "LIST_S", 0.02)
    refuses = True
    script = Cursors(lambda n, call: refusal(503, "busy") if refuses else None)
    said: list[str] = []

    def put(key: str, body: bytes) -> None:
        bucket.client.put_object(Bucket=bucket.bucket, Key=key, Body=body)

    async def work(url: str) -> None:
        nonlocal refuses
        with (
            Client(url) as client,
            contextlib.closing(Buckets(Endpoint(bucket.endpoint_url, None), 1)) as buckets,
        ):
            clock = Clock()
            daemon = ImportDaemon(
                url, DaemonAddress.of(url), FixedBudget(1 << 20), 60, clock, print
            )
            importer = Importer(plan(), daemon, SourceCursors(client, 0), 1, lambda count: None)
            objects = FollowingObjects(
                importer, buckets, [f"s3://{bucket.bucket}/"], 1, 60, clock, said.append
            )
            running = asyncio.create_task(objects.run())
            await until(lambda: len(script.produced) > 0)  # a; the others wait for it
            put("b", b"3\n")
            bucket.client.delete_object(Bucket=bucket.bucket, Key="c")
            refuses = False
            await until(lambda: clock.pass_s(0.1) and (running.done() or len(script.stored) == 2))
            importer.stop()
            await running
            assert [each.error for each in importer.reports if each.error] == []

    put("a", b"1\n")
    put("b", b"2\n")
    put("c", b"4\n")
    with scripted(script) as server:
        asyncio.run(work(server.url))
    assert (script.stored, said) == ([1, 3], [])


def test_more_files_than_can_be_followed_are_refused(tmp_path: Path) -> None:
    for n in range(FOLLOWED_MAX + 1):
        (tmp_path / str(n)).touch()
    daemon = ImportDaemon(
        "http://h:1", DaemonAddress.of("http://h:1"), FixedBudget(1), 0, Clock(), print
    )
    with Client("http://h:1") as client:
        importer = Importer(plan(), daemon, SourceCursors(client, 0), 1, lambda count: None)
        with pytest.raises(TooManyFiles, match="there are 257 files, and at most 256"):
            asyncio.run(Following(importer, [f"{tmp_path}/*"], 1).run())


def test_all_sources_that_cannot_be_are_named_together(tmp_path: Path) -> None:
    good = tmp_path / "good[1]"  # a file's own name comes before the pattern
    good.write_text("1\n")
    (tmp_path / "folder").mkdir()
    buckets = Buckets(Endpoint(None, None), 1)
    found = find([str(good), f"{tmp_path}/*", "-"], buckets, by_path=False)
    assert [(each.name, each.size) for each in found] == [(str(good), 2), ("stdin", None)]
    with pytest.raises(NotFound) as refused:
        find([f"{tmp_path}/folder", str(good), f"{tmp_path}/*.gz"], buckets, by_path=False)
    assert str(refused.value).splitlines() == [
        f"{tmp_path}/folder: is a directory",
        f"  {tmp_path}/*.gz: matches no file",
    ]
    assert refused.value.hint == f"'{tmp_path}/folder/*' names its files"


def test_stdin_that_is_closed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its descriptor may be a socket or a database of the process by then."""
    monkeypatch.setattr("sys.stdin", None)  # what Python makes of `<&-`
    with pytest.raises(NotFound, match="-: is closed"):
        find(["-"], Buckets(Endpoint(None, None), 1), by_path=False)
