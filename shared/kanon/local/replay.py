"""Replays a join log through the HTTP API, hour by hour, and compares the answers with exact counts."""

import http.client
import json
from base64 import urlsafe_b64encode
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from kanon.dynamo.batches import chunks as batched
from kanon.joinlog import Join, JoinLog

if TYPE_CHECKING:
    from kanon.local import Stack

TYPE = "fledge"
JOINS_A_CALL = 500
SETS_A_CALL = 1000


class ExactCounts:
    """Distinct clients of each set within the window, recounted from the log alone."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: dict[str, dict[str, int]] = defaultdict(dict)  # set: client: last step
        self._leaving: dict[int, list[Join]] = defaultdict(list)  # joins by the step they leave at
        self.counts: Counter[str] = Counter()

    def step(self, step: int, joins: Iterable[Join]) -> None:
        """Let a step's joins in and those of ``step - window`` out."""
        for join in joins:
            clients = self._last[join.set]
            self.counts[join.set] += join.client not in clients
            clients[join.client] = step
            self._leaving[step + self._window].append(join)
        for join in self._leaving.pop(step, ()):
            clients = self._last[join.set]
            if clients.get(join.client) == step - self._window:
                del clients[join.client]
                self.counts[join.set] -= 1


@dataclass
class History:
    """What a set's count was, and its status, from the step of its first join on."""

    first: int
    counts: list[int] = field(default_factory=list)
    statuses: list[bool] = field(default_factory=list)

    @property
    def flips(self) -> int:
        """How often the status changed, the first ``true`` included."""
        before = [False, *self.statuses]
        return sum(a != b for a, b in zip(before, self.statuses, strict=False))


@dataclass
class Result:
    """What a replay saw. Counts are of (set, step) pairs where not said otherwise."""

    k: int
    window: int
    period: int
    start: int
    joins: int = 0
    steps: int = 0
    histories: dict[str, History] = field(default_factory=dict)

    def note(self, step: int, counts: Counter[str], true: set[str]) -> None:
        """Record a step's exact counts beside the statuses served."""
        self.steps += 1
        for name, count in counts.items():
            history = self.histories.setdefault(name, History(step))
            history.counts.append(count)
            history.statuses.append(name in true)

    def _pairs(self) -> Iterator[tuple[int, bool]]:
        for history in self.histories.values():
            yield from zip(history.counts, history.statuses, strict=True)

    def confusion(self) -> Counter[tuple[bool, bool]]:
        """Pairs by (served as true, count at least k)."""
        return Counter((status, count >= self.k) for count, status in self._pairs())

    @property
    def flips(self) -> int:
        """Changes of a status, over all sets."""
        return sum(history.flips for history in self.histories.values())


class ApiError(RuntimeError):
    """The service answered something else than 200."""


class Client:
    """Calls the HTTP API over one connection."""

    def __init__(self, url: str) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)

    def call(self, method: str, path: str, body: Any = None) -> Any:
        """The answer's JSON; ``ApiError`` if its status is not 200."""
        data = None if body is None else json.dumps(body).encode()
        self._connection.request(method, path, data, {"Content-Type": "application/json"})
        response = self._connection.getresponse()
        content = response.read()
        if response.status != 200:
            raise ApiError(f"{method} {path}: {response.status} {content.decode()[:500]}")
        return json.loads(content)

    def join(self, joins: list[Join]) -> None:
        """Join, 500 at a time; ``ApiError`` if one of them is refused."""
        for some in batched(joins, JOINS_A_CALL):
            entries = [{"type": TYPE, "set": set_id(j.set), "client": j.client} for j in some]
            results = self.call("POST", "/v1:batchJoin", {"joins": entries})["results"]
            if any("error" in result for result in results):
                raise ApiError(f"a join was refused: {next(filter(None, results))}")

    def true_sets(self, names: list[str]) -> tuple[set[str], int | None]:
        """Which of the sets are k-anonymous, and the step these answers are of."""
        true: set[str] = set()
        step = None
        for some in batched(names, SETS_A_CALL):
            by_id = {set_id(name): name for name in some}
            asked = {"setsForType": [{"type": TYPE, "hashes": list(by_id)}]}
            answer = self.call("POST", "/v1:query", asked)
            true.update(by_id[id_] for id_ in answer["kAnonymousSets"][0]["hashes"])
            step = answer["step"]
        return true, step

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def set_id(name: str) -> str:
    """The id clients send for a set: SHA-256 of its name, base64url."""
    return urlsafe_b64encode(sha256(name.encode()).digest()).decode().rstrip("=")


def replay(stack: "Stack", log: JoinLog, progress: Callable[[int], None]) -> Result:
    """Let the log happen to a stack whose simulated time stands at the log's start.

    At every tick, publish_delay s into an hour, the joins of that hour are sent and all sets known
    so far are asked for the status of the hour before.

    Raises:
        ApiError: the service refused something, or a step was not visible at its tick.
    """
    delay = float(stack.template.parameters["PublishDelay"])
    server = stack.serve()
    client = Client(server.url)
    try:
        type_ = client.call("GET", f"/v1/types/{TYPE}")
        period, window = int(type_["period"]), int(type_["window"])
        result = Result(k=int(type_["k"]), window=window, period=period, start=log.start)
        exact = ExactCounts(window)
        for step, joins in log.by_step(period):
            stack.advance_to(step * period + delay)
            if step > log.start // period:
                _note(client, result, step - 1, exact.counts)
            client.join(joins)
            exact.step(step, joins)
            result.joins += len(joins)
            progress(len(joins))
        stack.advance_to((step + 1) * period + delay)
        _note(client, result, step, exact.counts)
        return result
    finally:
        client.close()
        server.close()


def _note(client: Client, result: Result, step: int, counts: Counter[str]) -> None:
    true, seen = client.true_sets(list(counts))
    if counts and seen != step:
        raise ApiError(f"the answers are of step {seen}, but step {step} has had its tick")
    result.note(step, counts, true)
