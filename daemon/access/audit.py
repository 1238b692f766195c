"""The audit log: who changed what, from where, and what came of it; one JSON object a line.

    asked (written before a change, or the change is refused with 503 ``audit_log``)
      -> the change -> outcome (``of`` names the number of the line before)

A line without an outcome is of a change that was not finished, or whose daemon was killed in it: it
may have been made. Whatever else happens is one line. Each process numbers its own lines, in shared
memory: the number goes on when a shard is killed, and a number that is missing between two lines of
one ``run`` and ``process`` was removed. Lines are appended whole, by one write each, and are with
the kernel when it returns; they are not flushed to the disk.

Refusals are bounded, so that strangers cannot fill the disk: ``left_out`` counts what was not
written. The file is opened again when another one, or none, has its name (logrotate).
"""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import os
import stat
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import msgspec

from daemon.schemas.errors import ApiError
from ledger.private_files import FILE, OTHERS
from shards.clock import monotonic_ns, wall_ms

log = logging.getLogger(__name__)

REFUSALS_BURST = 100
REFUSAL_NS = 1_000_000_000  # one more a second: 25 MB a day and shard at most
PATH_CHARACTERS_MAX = 512


class AuditError(Exception):
    """The file cannot be used; the message has its name, the reason and a remedy."""


class AuditedRequest(NamedTuple):
    """A request, as far as lines tell. ``address`` is whom it came from, "" for the Unix socket;
    ``forwarded`` what it says of those before."""

    who: str | None
    address: str
    forwarded: str
    method: str
    path: str


def check_audit_log(path: str | None) -> None:
    """Raises AuditError if this cannot be the file of the lines."""
    AuditLog(path, "", 0, [0], 0).close()


_command_lines = [0]  # of this process, if it is a command


def note_command(path: str | None, event: str, **fields: object) -> None:
    """A line of a command that works without a daemon, with the number of its user."""
    try:
        audit = AuditLog(path, f"command {os.getpid()}", 0, _command_lines, 0)
    except AuditError as error:
        log.error("no line of %s: %s", event, error)
        return
    audit.note(event, user=os.geteuid(), **fields)
    audit.close()


class AuditLog:
    """The lines of one process. ``counter`` has the number of its last line at ``index``. Raises
    AuditError if there is a path that cannot be used; without one, nothing is written."""

    def __init__(
        self,
        path: str | None,
        process: str,
        run: int,
        counter: MutableSequence[int] | memoryview,
        index: int,
        trusted_proxies: Sequence[str] = (),
        now_ms: Callable[[], int] = wall_ms,
        now_ns: Callable[[], int] = monotonic_ns,
    ) -> None:
        self._path = None if path is None else Path(path)
        self._process = process
        self._run = run
        self._counter, self._index = counter, index
        self._proxies = [ipaddress.ip_network(each, strict=False) for each in trusted_proxies]
        self._now_ms, self._now_ns = now_ms, now_ns
        self._fd = -1
        self._refusals_ns = 0  # when the refusals that were written are paid for
        self._left_out = 0
        if self._path is not None:
            self._open(self._path)

    @contextlib.contextmanager
    def change(self, asked: AuditedRequest) -> Iterator[None]:
        """While a change is made. Raises ApiError 503 before it if no line can be written."""
        if self._path is None:
            yield
            return
        try:
            number = self._write("asked", **self._told(asked))
        except OSError as error:
            raise ApiError(
                503,
                "audit_log",
                f"nothing was changed: {self._path}, which must have a line of each change, cannot"
                f" be written ({error.strerror}); make room for it, or set another audit_log",
                retry_after_s=10,
            ) from error
        status, code = 200, None
        try:
            yield
        except ApiError as error:
            status, code = error.status, error.code
            raise
        except BaseException as error:
            status, code = 0, type(error).__name__
            raise
        finally:
            self.note("outcome", of=number, status=status, code=code)

    def refused(self, asked: AuditedRequest, error: ApiError) -> None:
        """A request that its sender had no right to."""
        if self._path is None:
            return
        now_ns = self._now_ns()
        self._refusals_ns = max(self._refusals_ns, now_ns - REFUSALS_BURST * REFUSAL_NS)
        if self._refusals_ns > now_ns - REFUSAL_NS:
            self._left_out += 1
            return
        self._refusals_ns += REFUSAL_NS
        told = self._told(asked)
        if self.note(
            "refused", **told, status=error.status, code=error.code, left_out=self._left_out
        ):
            self._left_out = 0

    def note(self, event: str, **fields: object) -> bool:
        """A line of something that is not refused if it cannot be written; whether it was."""
        if self._path is None:
            return True
        try:
            self._write(event, **fields)
        except OSError as error:
            log.error("%s lacks a line (%s): %s %s", self._path, error.strerror, event, fields)
            return False
        return True

    def close(self) -> None:
        """Writes nothing more."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _told(self, asked: AuditedRequest) -> dict[str, object]:
        return {
            "who": asked.who,
            "from": self.sender(asked.address, asked.forwarded),
            "method": asked.method,
            "path": asked.path[:PATH_CHARACTERS_MAX],
        }

    def sender(self, address: str, forwarded: str) -> str:
        """Whom a request is of: the last one that no trusted proxy of ours forwarded for."""
        if not address:
            return "admin.sock"
        hops = [hop.strip() for hop in forwarded.split(",") if hop.strip()]
        while hops and self._is_trusted(address):
            address = hops.pop()[:64]
        return address

    def _is_trusted(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address.partition("%")[0])
        except ValueError:
            return False
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        return any(found in network for network in self._proxies)

    def _write(self, event: str, **fields: object) -> int:
        """Raises OSError; then there is no line, or half of one that the next line ends."""
        assert self._path is not None
        self._follow_name(self._path)
        number = int(self._counter[self._index]) + 1
        time = datetime.fromtimestamp(self._now_ms() / 1000, UTC)
        line = {
            "time": time.isoformat(timespec="milliseconds"),
            "run": self._run,
            "process": self._process,
            "n": number,
            "event": event,
            **fields,
        }
        # Of a line that did not fit the disk, which may be another process's, half is there.
        size = os.fstat(self._fd).st_size
        is_torn = size > 0 and os.pread(self._fd, 1, size - 1) != b"\n"
        data = b"\n" * is_torn + msgspec.json.encode(line) + b"\n"
        written = os.write(self._fd, data)
        if written < len(data):
            raise OSError(28, "a line did not fit")
        self._counter[self._index] = number
        return number

    def _follow_name(self, path: Path) -> None:
        try:
            named = os.lstat(path)
        except FileNotFoundError:
            named = None
        if self._fd >= 0:
            ours = os.fstat(self._fd)
            if named is not None and (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino):
                return
            self.close()
        try:
            self._open(path)
        except AuditError as error:
            raise OSError(0, str(error)) from error

    def _open(self, path: Path) -> None:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            fd = os.open(path, flags, FILE)
        except OSError as error:
            raise AuditError(
                f"cannot write the audit log {path}: {error.strerror}; it must be a file in a"
                " folder that this user may write to, and no symbolic link"
            ) from error
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_mode & OTHERS:
            os.close(fd)
            raise AuditError(
                f"the audit log {path} must be a file of this user alone, and has the mode"
                f" {stat.S_IMODE(status.st_mode):o}: run `chmod 600 {path}`"
            )
        self._fd = fd
