"""Replays a join log through the HTTP API, hour by hour, and compares the answers with exact counts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kanon.client import Client, set_id
from kanon.client import Join as Sent
from kanon.joinlog import Join
from kanon.local.logs import JoinLog

if TYPE_CHECKING:
    from kanon.local import Stack

TYPE = "fledge"


class ExactCounts:
    """Distinct clients of each set within the window, recounted from the log alone."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: dict[str, dict[str, int]] = defaultdict(dict)  # set: client: last step
        self._leaving: dict[int, list[Join]] = defaultdict(list)  # joins by the step they leave at
        self.counts: Counter[str] = Counter()

    def step(self, step: int, joins: Iterable[Join]) -> None:
        """Add the joins of a step and remove those of ``step - window``."""
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
    """The counts of a set and its statuses, from the step of its first join on."""

    first: int
    counts: list[int] = field(default_factory=list)
    statuses: list[bool] = field(default_factory=list)

    @property
    def flips(self) -> int:
        """How often the status changed, including the first ``true``."""
        before = [False, *self.statuses]
        return sum(a != b for a, b in zip(before, self.statuses, strict=False))


@dataclass
class Result:
    """The result of a replay. Counts are of (set, step) pairs unless stated otherwise."""

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


class ReplayError(RuntimeError):
    """The service did not keep up with the replay; the message says where."""


def replay(stack: "Stack", log: JoinLog, progress: Callable[[int], None]) -> Result:
    """Replay the log on a stack whose simulated time is the start of the log.

    At every tick, publish_delay s after the start of an hour, it sends the joins of that hour and queries the
    statuses of all known sets, which are those of the hour before.

    Raises:
        ApiError: the service refused something.
        ReplayError: a step was not visible at its tick.
    """
    delay = float(stack.template.parameters["PublishDelay"])
    server = stack.serve()
    client = Client(server.url)
    try:
        type_ = client.type(TYPE)
        period, window = int(type_["period"]), int(type_["window"])
        result = Result(k=int(type_["k"]), window=window, period=period, start=log.start)
        exact = ExactCounts(window)
        for step, joins in log.by_step(period):
            stack.advance_to(step * period + delay)
            if step > log.start // period:
                _note(client, result, step - 1, exact.counts)
            client.join_all(Sent(TYPE, set_id(join.set), join.client) for join in joins)
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
    names = {set_id(name): name for name in counts}
    answers = client.batch_query((TYPE, set_) for set_ in names)
    if counts and answers.step != step:
        raise ReplayError(f"the answers are of step {answers.step}, but step {step} has had its tick")
    result.note(step, counts, {names[place.set] for place in answers.k_anonymous})
