"""One call for what several threads ask for at the same time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Grouped(Generic[Item, Result]):
    """Answers single questions with a function that answers many.

    Who asks while a call is under way waits for the next one, which takes all that wait then. So a
    call has at most one question of each thread, and none waits for others to come. An error is
    raised to all whose question was in the call.
    """

    def __init__(self, answers: Callable[[list[Item]], Sequence[Result]]) -> None:
        self._answers = answers
        self._waiting: list[tuple[Item, Future[Result]]] = []
        self._asking = threading.Lock()
        self._turn = threading.Lock()

    def __call__(self, item: Item) -> Result:
        """The answer to one question."""
        answer: Future[Result] = Future()
        with self._asking:
            self._waiting.append((item, answer))
        with self._turn:
            if not answer.done():
                self._call()
        return answer.result()

    def _call(self) -> None:
        with self._asking:
            taken, self._waiting = self._waiting, []
        try:
            found = self._answers([item for item, _ in taken])
            for (_, answer), result in zip(taken, found, strict=True):
                answer.set_result(result)
        except BaseException as error:
            for _, answer in taken:
                if not answer.done():
                    answer.set_exception(error)
            raise
