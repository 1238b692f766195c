"""The admin API of a real daemon, over TCP and over the socket in its data directory."""

from __future__ import annotations

import json
import stat
from contextlib import closing
from pathlib import Path

import pytest

from compaction.access.http_calls import (
    SOCKET_NAME,
    DaemonRefused,
    DaemonUnreachable,
    answers,
    call,
    socket_address,
)
from compaction.access.via_daemon import ViaDaemon
from daemon.api.handlers import admin
from tests.e2e.daemon import running, wait_until
from uploader.stores import open_store


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return tmp_path / "data"


CATALOG: dict[str, object] = {"catalog_uri": "postgresql://lake:secret@127.0.0.1/lake"}


def test_the_socket_in_the_data_directory_is_this_users_only_and_goes_with_the_daemon(
    data: Path,
) -> None:
    """In a data directory with a long name, too. A catalog's password is not told, and TCP has the
    admin API only if it was opened."""
    deep = data / ("d" * 120)
    deep.mkdir(parents=True)
    address = socket_address(str(deep))
    assert not answers(address)
    with running(deep, settings=CATALOG) as daemon:
        mode = (deep / SOCKET_NAME).stat().st_mode
        assert stat.S_ISSOCK(mode) and stat.S_IMODE(mode) == 0o600
        by_socket = ViaDaemon(address).settings
        assert (by_socket.pid, by_socket.data_dir) == (daemon.process.pid, str(deep))
        assert by_socket.catalog_uri == "postgresql://lake@127.0.0.1/lake"
        with pytest.raises(DaemonRefused, match=r"403 admin_over_tcp.*set admin_over_tcp = true"):
            ViaDaemon(daemon.url)
        assert json.loads(call(address, "GET", "/v0/status"))["ready"]
        with pytest.raises(DaemonRefused, match="404 not_found"):
            call(address, "GET", "/v0/admin/nothing", once=True)
        pages = "/v0/admin/ledger/topics.page"
        for limit in (1, 10_000):
            assert call(address, "POST", pages, b'["",%d]' % limit, once=True) == b"[]"
        for limit in (-1, 0, 10_001):
            with pytest.raises(DaemonRefused, match=f"limit must be 1 to 10000, got {limit}"):
                call(address, "POST", pages, b'["",%d]' % limit, once=True)
        daemon.kill_everything()
    assert (deep / SOCKET_NAME).exists() and not answers(address)
    opened = {**CATALOG, "admin_over_tcp": "true"}
    with running(deep, settings=opened) as daemon:  # the dead daemon's socket is replaced
        assert ViaDaemon(daemon.url).settings == ViaDaemon(address).settings
        assert ViaDaemon(daemon.url).settings.catalog_uri == by_socket.catalog_uri
    assert not (deep / SOCKET_NAME).exists()
    with pytest.raises(DaemonUnreachable, match="is it running"):
        call(address, "GET", "/v0/status", once=True)


def test_the_arguments_and_the_result_of_each_operation_that_is_served_are_types_of_json() -> None:
    for served in (*admin._LEDGER.values(), *admin._CATALOG.values()):
        assert len(served._arguments) == len(served._parameters) and served._result is not None


@pytest.mark.slow
def test_a_backup_that_is_awaited_covers_what_was_written_before(data: Path) -> None:
    with running(data, shards=2) as daemon:
        access = ViaDaemon(socket_address(str(data)))
        assert access.live_leases() == []
        assert daemon.produce("t", 1).status == 200
        wait_until(lambda: access.settled_commits() == 1, "all shards to follow the commit")
        with closing(open_store(f"file://{data}/store")) as store:
            before = [head.key for head in store.list("ledger/")]
            access.await_backup()
            assert len([head.key for head in store.list("ledger/")]) > len(before)


@pytest.mark.parametrize("address", ["daemon:7440", "foo", "", "ftp://daemon"])
def test_an_address_that_is_none_is_refused_before_anything_is_asked(address: str) -> None:
    with pytest.raises(DaemonUnreachable, match="http://HOST:PORT, https://HOST:PORT or unix:PATH"):
        call(address, "GET", "/v0/status")
