"""Joins over HTTP at a given rate: an open loop, so a slow service does not slow its callers down.

A request begins at its scheduled time. Its latency counts from then, including the wait for a free environment.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from queue import SimpleQueue

import numpy as np

from kanon.client import Client, NoAnswerError, RefusedError, encoded
from kanon.client import Join as Sent
from kanon.gate.joining import Join
from tests.faults.gate.load.served import Row, Served

SENDERS = 64
NO_ANSWER = 0
SINGLE = 0.5
"""Share of the requests that hold one join; the others hold a batch."""
BATCH = 50


@dataclass
class Tally:
    """The results of the requests at one rate. ``latencies`` in s, one per request.

    ``refused_alone`` counts the refused joins whose batch was answered 200: each has its own 503.
    """

    rate: float
    joins: int = 0
    acknowledged: list[Join] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    refused: int = 0
    refused_alone: int = 0
    without_retry_after: int = 0
    latencies: list[float] = field(default_factory=list)
    missing: int = 0

    def line(self) -> str:
        """The figures as a row of a table."""
        statuses = ", ".join(f"{count} x {status}" for status, count in sorted(self.statuses.items()))
        p50, p95, p99 = 1000 * np.percentile(self.latencies, (50, 95, 99))
        return (
            f"| {self.rate:g} | {self.joins} | {len(self.acknowledged)} | {self.missing} |"
            f" {self.refused} | {self.refused_alone} | {self.without_retry_after} |"
            f" {statuses} | {p50:.0f} / {p95:.0f} / {p99:.0f} |"
        )


HEADER = (
    "| requests/s | joins sent | acknowledged | of them not in the log | refused | of them alone |"
    " without Retry-After | answers | latency ms, 50% / 95% / 99% |\n|---|---|---|---|---|---|---|---|---|"
)


def drive(served: Served, workload: Iterator[Join], rate: float, seconds: float, seed: int = 0) -> Tally:
    """Send requests for ``seconds`` at ``rate`` per second, then check that every acknowledged join is in the log."""
    tally, lock, chance = Tally(rate), threading.Lock(), random.Random(seed)
    free: SimpleQueue[Client] = SimpleQueue()
    for url in served.urls:
        free.put(Client(url, deadline=0))

    def send(due: float, joins: Sequence[Join]) -> None:
        client = free.get()  # to an idle environment
        try:
            status, retry_after, taken = _request(client, joins)
        finally:
            free.put(client)
        with lock:
            tally.latencies.append(time.monotonic() - due)
            tally.statuses[status] += 1
            tally.joins += len(joins)
            tally.without_retry_after += status not in (200, NO_ANSWER) and not retry_after
            tally.acknowledged += [join for join, ok in zip(joins, taken, strict=True) if ok]
            tally.refused += taken.count(False)
            tally.refused_alone += status == 200 and taken.count(False)

    began = time.monotonic()
    with ThreadPoolExecutor(SENDERS) as senders:
        due = began
        sent = []
        while (due := due + chance.expovariate(rate)) < began + seconds:
            joins = list(islice(workload, 1 if chance.random() < SINGLE else BATCH))
            time.sleep(max(0.0, due - time.monotonic()))
            sent.append(senders.submit(send, due, joins))
        for done in sent:
            done.result()
    for _ in served.urls:
        free.get().close()
    logged: set[Row] = served.rows()
    tally.missing = sum(served.row(join) not in logged for join in tally.acknowledged)
    return tally


def _request(client: Client, joins: Sequence[Join]) -> tuple[int, bool, list[bool]]:
    """The status, whether Retry-After is set, and for each join whether it was acknowledged."""
    try:
        sent = [Sent(join.type_name, encoded(join.set_id), join.client.decode()) for join in joins]
        if len(sent) == 1:
            type_, set_, name = sent[0]
            client.call("POST", f"/v1/types/{type_}/sets/{set_!s}:join", {"client": name})
            return 200, False, [True]
        results = client.batch_join(sent)
    except NoAnswerError:
        return NO_ANSWER, False, [False] * len(joins)
    except RefusedError as error:
        return error.code, error.retry_after is not None, [False] * len(joins)
    if {refused.code for refused in results if refused is not None} - {503}:
        raise RuntimeError("a join of a batch was refused with something other than 503")
    return 200, False, [refused is None for refused in results]
