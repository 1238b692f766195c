"""Runs a command of the shell for messages, several at a time and each key in order.

    started -> waits for its key's turn -> runs -> acknowledged (exit code 0) or refused

The daemon sends no second message of a key before the first one is settled. If it has taken one
back, for a time-out or a seek, while its command still runs, then what it sends of that key waits
here, and the same message is not run a second time: the outcome of its command counts for the batch
in which it came last.

Each command is a process group of its own, so the Ctrl-C that ends the consumer lets it finish.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
from base64 import b64decode
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Condition, Lock

import msgspec
from msgspec import UNSET

from commands.client.reader import data_line
from commands.consuming.batches import POLL_MESSAGES, Outcomes
from commands.shell.exits import CommandFailed
from compaction.access.bearer import TOKEN
from delivery.subscriptions.schemas import ConsumedMessage

PARALLEL_MAX = POLL_MESSAGES  # one poll can fill it
REASON_CHARACTERS_MAX = 200
# How a command ends that is stopped from outside, and how long to wait for the signal that stops us
# too: whoever stops a service sends it to all of its processes.
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_STOPPED_CODES = frozenset(code for number in _STOPPING for code in (-number, 128 + number))
STOP_WAIT_S = 0.2

Say = Callable[[str], None]
Key = str | tuple[int, int]
"""A key, a node that counts as one, or the place of a message that has neither."""


class MessageCommands:
    """Up to ``parallel`` commands. ``outcomes`` is called by one thread at a time. ``takes_nodes``:
    the node of a message without a key counts as its key."""

    def __init__(
        self, command: str, topic: str, outcomes: Outcomes, say: Say, *, parallel: int,
        as_json: bool, takes_nodes: bool,
    ) -> None:  # fmt: skip
        self._command = command
        self._topic = topic
        self._outcomes = outcomes
        self._say = say
        self._as_json = as_json
        self._takes_nodes = takes_nodes
        self._parallel = parallel
        self._pool = ThreadPoolExecutor(parallel, "command")
        self._changed = Condition()  # guards what follows
        self._waiting: dict[Key, deque[ConsumedMessage]] = {}  # of the keys that are worked on
        self._in_hand: dict[tuple[int, int], ConsumedMessage] = {}
        self._running: set[subprocess.Popen[bytes]] = set()
        self._stopped = False
        self._failure: Exception | None = None
        self._telling = Lock()

    def room(self, most: int | None) -> int:
        """Waits until another message can be taken, and says how many, ``most`` at most. Raises why
        an outcome could not be told, or no command be started."""
        if most is not None and most <= 0:
            return 0
        with self._changed:
            self._changed.wait_for(lambda: self._failure or len(self._in_hand) < self._parallel)
            if self._failure is not None:
                raise self._failure
            room = self._parallel - len(self._in_hand)
        return room if most is None else min(room, most)

    def start(self, message: ConsumedMessage) -> bool:
        """Takes a message; False if it is being worked on already."""
        place = _place(message)
        key = self._key(message)
        with self._changed:
            is_new = place not in self._in_hand
            self._in_hand[place] = message
            if is_new and key in self._waiting:
                self._waiting[key].append(message)
            elif is_new:
                self._waiting[key] = deque()
                self._pool.submit(self._work, key, message)
        return is_new

    def wait(self) -> None:
        """Waits for all that was taken."""
        with self._changed:
            self._changed.wait_for(lambda: not self._in_hand)

    def finish(self) -> None:
        """Waits for all that was taken. Raises as ``room``."""
        self.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> int:
        """Starts nothing more; returns how many commands run."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
            return len(self._running)

    def kill(self) -> None:
        """Ends what runs."""
        with self._changed:
            for process in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends the threads, which must have nothing to do."""
        self._pool.shutdown()

    def _key(self, message: ConsumedMessage) -> Key:
        if message.key is not UNSET:
            return message.key
        if self._takes_nodes and message.node is not UNSET:
            return message.node
        return _place(message)

    def _work(self, key: Key, message: ConsumedMessage) -> None:
        """Works on a message and on those that wait for it."""
        while True:
            try:
                self._execute(message)
            except Exception as error:  # noqa: BLE001 - raised where messages are taken
                with self._changed:
                    self._failure = self._failure or error
                    self._stopped = True
            with self._changed:
                del self._in_hand[_place(message)]
                self._changed.notify_all()
                if not self._waiting[key]:
                    del self._waiting[key]
                    return
                message = self._waiting[key].popleft()

    def _execute(self, message: ConsumedMessage) -> None:
        try:
            why = self._run(message)
        except ValueError as error:  # of the environment: a key may have any character
            why = f"the key cannot be handed to a command: {error}"
        except OSError as error:
            if error.errno != errno.E2BIG:
                raise CommandFailed(f"no command can be started: {error}") from error
            why = f"the key of {len(_text(message.key)):,} characters is too long for a command"
        if why is None:
            return
        with self._telling:
            message = self._in_hand[_place(message)]  # of the batch in which it came last
            if not why:
                self._outcomes.ack([message])
                return
            self._say(f"message {message.seq} of partition {message.partition}: {why}")
            self._outcomes.nack(message, f"{self._command[:REASON_CHARACTERS_MAX]}: {why}")

    def _run(self, message: ConsumedMessage) -> str | None:
        """Why the command failed; empty if it did not, None if it was not run to its end."""
        told = {
            "TOPIC": self._topic, "PARTITION": message.partition, "SEQ": message.seq,
            "KEY": _text(message.key), "ATTEMPT": message.attempt,
        }  # fmt: skip
        environ = os.environ | {f"HEADGATE_{name}": str(value) for name, value in told.items()}
        environ.pop(TOKEN, None)  # who works on data of strangers needs no rights
        environ["PYTHONPATH"] = paths_of_others(environ.get("PYTHONPATH", ""))
        with self._changed:
            is_late = self._stopped
            if is_late:
                return None
            process = subprocess.Popen(
                self._command, shell=True, stdin=subprocess.PIPE, env=environ, process_group=0
            )
            self._running.add(process)
        try:
            process.communicate(self._input(message))
        finally:
            with self._changed:
                self._running.discard(process)
        code = process.returncode
        if code == 0:
            return ""
        with self._changed:
            if code in _STOPPED_CODES:
                self._changed.wait_for(lambda: self._stopped, STOP_WAIT_S)
            if self._stopped:
                return None  # it may have been ended with the consumer, which is not a failure
        return f"exit code {code}" if code > 0 else f"ended by signal {-code}"

    def _input(self, message: ConsumedMessage) -> bytes:
        if message.data_b64 is not UNSET and not self._as_json:
            return b64decode(message.data_b64)
        return message_line(message, as_json=self._as_json) + b"\n"


def message_line(message: ConsumedMessage, *, as_json: bool) -> bytes:
    """The message, or only its data, on one line."""
    return msgspec.json.encode(message) if as_json else data_line(message)


def _place(message: ConsumedMessage) -> tuple[int, int]:
    return message.partition, message.seq


def _text(key: str | msgspec.UnsetType) -> str:
    return "" if key is UNSET else key


def paths_of_others(paths: str) -> str:
    """PYTHONPATH without Headgate's own modules, which ``headgate`` puts there for its processes: a
    command's ``import daemon`` must not find them."""
    own = str(Path(__file__).resolve().parents[2])
    return os.pathsep.join(each for each in paths.split(os.pathsep) if each != own)
