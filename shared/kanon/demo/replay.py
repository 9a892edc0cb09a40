"""Replays a join log through the HTTP API, hour by hour, and compares the answers with exact counts."""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kanon.client import Client, Join, value_id
from kanon.demo.logs import DemoLog
from kanon.errors import Error
from kanon.joinlog import LoggedJoin


class ReplayedService(Protocol):
    """A service on simulated time."""

    @property
    def url(self) -> str:
        """Its address."""

    @property
    def publish_delay(self) -> float:
        """The time from the end of a step until its answers are visible (s)."""

    def advance_to(self, moment: float) -> None:
        """Move its time, and evaluate what is due until then."""


class ExactCounts:
    """Distinct clients of each set within the window, recounted from the log alone."""

    def __init__(self, window: int) -> None:
        self._window = window
        self._last: dict[str, dict[str, int]] = defaultdict(dict)  # set: client: last step
        self._leaving: dict[int, list[LoggedJoin]] = defaultdict(list)  # joins by the step at which they leave
        self.counts: Counter[str] = Counter()

    def step(self, step: int, joins: Iterable[LoggedJoin]) -> None:
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
        """The number of changes of the status, including the first ``true``."""
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
    first_true: tuple[str, int] | None = None
    """The set that read true first, and its exact count then."""

    def note(self, step: int, counts: Counter[str], true: set[str]) -> None:
        """Record a step's exact counts beside the statuses served."""
        self.steps += 1
        if true and self.first_true is None:
            self.first_true = max(((name, counts[name]) for name in true), key=lambda found: found[1])
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


class ReplayError(Error, RuntimeError):
    """The service was too slow for the replay; the message names the step."""


def replay(
    service: ReplayedService, log: DemoLog, names: Sequence[str], watch: Callable[[Mapping[str, Result]], None]
) -> dict[str, Result]:
    """Replay the log on a service whose time is the start of the log, and return the results by type.

    At every tick, publish_delay seconds after the start of an hour, it sends the joins of that hour, each once per
    type of ``names``, and queries all known sets. Their statuses are those of the hour before. ``watch`` gets the
    results after every step.

    Raises:
        ApiError: the service refused a call.
        ReplayError: a step was not visible at its tick.
    """
    delay = service.publish_delay
    with Client(service.url) as client:
        results, exact = {}, {}
        for name in names:
            type_ = client.type(name)
            period, window = int(type_["period"]), int(type_["window"])
            results[name] = Result(k=int(type_["k"]), window=window, period=period, start=log.start)
            exact[name] = ExactCounts(window)
        for step, joins in log.by_step(period):
            service.advance_to(step * period + delay)
            if step > log.start // period:
                _note(client, results, step - 1, exact)
            client.join_many(Join(name, join.set, join.client) for join in joins for name in names)
            for name in names:
                exact[name].step(step, joins)
                results[name].joins += len(joins)
            watch(results)
        service.advance_to((step + 1) * period + delay)
        _note(client, results, step, exact)
        watch(results)
        return results


def _note(client: Client, results: Mapping[str, Result], step: int, exact: Mapping[str, ExactCounts]) -> None:
    asked: dict[tuple[str, str], str] = {
        (name, value_id(set_)): set_ for name in results for set_ in exact[name].counts
    }
    answers = client.batch_query(asked)
    if asked and answers.step != step:
        raise ReplayError(f"the answers are of step {answers.step}, but the tick of step {step} has passed")
    for name, result in results.items():
        true = {asked[place] for place in answers.k_anonymous if place[0] == name}
        result.note(step, exact[name].counts, true)
