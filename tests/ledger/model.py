"""What the ledger must do, said record by record in plain Python: the model of the property test.

Slow and obvious on purpose: it keeps a list of records per partition and handles one request at
a time in pull order, where the ledger computes with counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.ledger.requests import Answer, Request

Record = tuple[int, int, int]
"""(request number over all leases, partition, index in the request's part)"""


class Model:
    def __init__(self, window_ms: int) -> None:
        self.window_ms = window_ms
        # None where no record is: in a gap.
        self.partitions: dict[tuple[int, int], list[Record | None]] = {}
        self.deleted: set[int] = set()
        self.cursors: dict[int, dict[int, int]] = {}  # live ones: where they are by partition
        self.keys: dict[tuple[int, str], tuple[int, Answer]] = {}
        self.requests = 0

    def grow(self, topic_id: int, partitions: int) -> None:
        for partition in range(partitions):
            self.partitions.setdefault((topic_id, partition), [])

    def head(self, topic_id: int, partition: int) -> int:
        return len(self.partitions[topic_id, partition])

    def commit(self, requests: Sequence[Request], now_ms: int) -> list[Answer]:
        answers: list[Answer] = []
        firsts: dict[tuple[int, str], int] = {}
        for request in requests:
            self.requests += 1
            answer = self._judge(request, now_ms, firsts, answers)
            if answer is None:
                answer = self._store(request)
                if request.key is not None:
                    firsts[request.topic_id, request.key] = len(answers)
            answers.append(answer)
        # A replayed answer carries the head after the commit that gave it.
        for (topic_id, key), at in firsts.items():
            parts = answers[at].parts
            kept = Answer("deduped", parts, self.head(topic_id, parts[0][0]))
            self.keys[topic_id, key] = (now_ms, kept)
        for at, (request, answer) in enumerate(zip(requests, answers, strict=True)):
            if answer.kind == "deduped":
                assert request.key is not None
                answers[at] = self.keys[request.topic_id, request.key][1]
        return answers

    def _judge(
        self,
        request: Request,
        now_ms: int,
        firsts: dict[tuple[int, str], int],
        answers: list[Answer],
    ) -> Answer | None:
        if request.topic_id in self.deleted:
            return Answer("topic_deleted")
        if request.key is not None:
            key = (request.topic_id, request.key)
            if key in firsts:
                return Answer("deduped", answers[firsts[key]].parts)
            if key in self.keys and now_ms - self.keys[key][0] <= self.window_ms:
                return self.keys[key][1]
        if request.advance is not None:
            if request.advance.cursor_id not in self.cursors:
                return Answer("cursor_unknown")
            at = self.cursors[request.advance.cursor_id].get(request.advance.partition, 0)
            if at != request.advance.expected:
                return Answer("cursor_moved", cursor_seq=at)
        if request.expected_seq is not None:
            head = self.head(request.topic_id, request.parts[0][0])
            if head != request.expected_seq:
                return Answer("sequence_mismatch", (), head)
        return None

    def _store(self, request: Request) -> Answer:
        parts = []
        if request.advance is not None:
            there = self.cursors[request.advance.cursor_id]
            there[request.advance.partition] = request.advance.next
        for partition, count in request.parts:
            records = self.partitions[request.topic_id, partition]
            parts.append((partition, len(records) + 1, len(records) + count))
            records.extend((self.requests, partition, index) for index in range(count))
        return Answer("stored", tuple(parts))
