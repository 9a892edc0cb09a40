"""Plain oracles of reports: Algorithms 6, 8 and 9 of the Privacy Sandbox paper, clients and service in one function.

Nothing of the product is used: dictionaries, lists and exact fractions. Noise and coins are arguments. The paper's
slips are corrected: a query is refused if a report *of the query* is exhausted (Algorithm 6 prints the set of all
reports); the unit of Algorithm 3 is ``u`` throughout; Algorithm 9 counts its steps on; the delta of a budget is a
sum; thresholds are integers.
"""

from collections import defaultdict
from fractions import Fraction
from typing import Any, NamedTuple

INFINITE = float("inf")


class Query(NamedTuple):
    """One request to the service.

    Attributes:
        reports: positions of the reports, in the order in which they were made.
        epsilon, delta: what it spends.
        keys: the declared keys, or None to discover them.
        threshold: of discovery.
    """

    reports: tuple[int, ...]
    epsilon: Fraction
    delta: Fraction
    keys: tuple[int, ...] | None
    threshold: int = 0


class Service:
    """The service's part of Algorithms 6 and 8: a filter on budgets, and the noisy histogram.

    ``unit_of`` names what a report is charged to; in the paper every report is a unit of its own.
    """

    def __init__(self, most_epsilon, most_delta, noise, unit_of):
        self.most_epsilon, self.most_delta = most_epsilon, most_delta
        self.noise, self.unit_of = noise, unit_of
        self.epsilon: dict[Any, Fraction] = defaultdict(Fraction)
        self.delta: dict[Any, Fraction] = defaultdict(Fraction)
        self.queries = 0

    def answer(self, query, reports):
        """A dictionary of noisy sums, or None if a unit of the query is short of budget: then nothing is spent."""
        number, self.queries = self.queries, self.queries + 1
        units = {self.unit_of(y) for y in query.reports}
        for unit in units:
            if self.epsilon[unit] + query.epsilon > self.most_epsilon:
                return None
            if self.delta[unit] + query.delta > self.most_delta:
                return None
        for unit in units:
            self.epsilon[unit] += query.epsilon
            self.delta[unit] += query.delta
        sums: dict[int, int] = defaultdict(int)
        for y in query.reports:
            key, value = reports[y]
            if value:
                sums[key] += value
        if query.keys is not None:
            return {key: sums[key] + self.noise(number, key) for key in query.keys}
        noisy = {key: value + self.noise(number, key) for key, value in sums.items()}
        return {key: value for key, value in noisy.items() if value > query.threshold}


def algorithm_6(steps, bound, most_epsilon, most_delta, noise, sparsity=INFINITE, unit_of=lambda y: y):
    """Attribution summary reports. A step is one of

    * ``("source", campaign)``
    * ``("trigger", campaign, key, value)``
    * ``("query", Query)``

    Returns the reports as (key, value), and the answers.
    """
    sources: list[dict[str, Any]] = []
    reports: list[tuple[int, int]] = []
    service = Service(most_epsilon, most_delta, noise, unit_of)
    answers = []
    for step in steps:
        if step[0] == "source":
            sources.append({"campaign": step[1], "used": 0, "reports": 0})
        elif step[0] == "trigger":
            _, campaign, key, value = step
            for source in reversed(sources):
                fits = source["used"] + value <= bound and source["reports"] < sparsity
                if source["campaign"] == campaign and fits:
                    source["used"] += value
                    source["reports"] += 1  # a value of 0 counts here, unlike in Algorithms 2 and 3
                    reports.append((key, value))
                    break
            else:
                reports.append((0, 0))
        else:
            answers.append(service.answer(step[1], reports))
    return reports, answers


def algorithm_8(steps, bound, window, most_epsilon, most_delta, noise, sparsity=INFINITE, unit_of=lambda y: y):
    """Private aggregation. A step is ``("event", device, time, key, value)`` or ``("query", Query)``.

    The unit u is (device, window). Returns the reports as (key, value), and the answers.
    """
    used: dict[Any, int] = defaultdict(int)
    made: dict[Any, int] = defaultdict(int)
    reports: list[tuple[int, int]] = []
    service = Service(most_epsilon, most_delta, noise, unit_of)
    answers = []
    for step in steps:
        if step[0] == "event":
            _, device, time, key, value = step
            u = (device, time // window)
            if used[u] + value <= bound and made[u] < sparsity:
                used[u] += value
                made[u] += 1
                reports.append((key, value))
            else:
                reports.append((0, 0))
        else:
            answers.append(service.answer(step[1], reports))
    return reports, answers


def algorithm_9(steps, specification, most_reports, coins):
    """Event-level reports of all sources: attribution, buckets and randomised response.

    ``specification`` is a list of (datum, ends of windows, buckets), the ends being ages. A step is

    * ``("source", time, campaign)``
    * ``("trigger", time, campaign, datum, value)``
    * ``("tell", time)``: what is told of the windows that have ended?

    ``coins(x)`` gives, for source number x, None to tell the truth or a matrix of counts to tell instead. A trigger
    belongs to the newest source of its campaign that still has reports left.

    Returns the answers to ``tell``: a sorted list of (source, datum, window, count) with counts above 0. The step
    number goes on after every step, whatever it was.
    """
    sources: list[dict[str, Any]] = []
    answers = []
    i = 0
    while i < len(steps):
        step = steps[i]
        if step[0] == "source":
            counts = [[0] * len(ends) for _, ends, _ in specification]
            empty = {"time": step[1], "campaign": step[2], "counts": counts, "sums": [0] * len(specification)}
            sources.append(empty | {"told": coins(len(sources))})
        elif step[0] == "trigger":
            _trigger(sources, specification, most_reports, step)
        else:
            answers.append(_told(sources, specification, step[1]))
        i = i + 1
    return answers


def _trigger(sources, specification, most_reports, step):
    _, time, campaign, datum, value = step
    for source in reversed(sources):
        if source["campaign"] == campaign and sum(map(sum, source["counts"])) < most_reports:
            for d, (name, ends, buckets) in enumerate(specification):
                age = time - source["time"]
                if name == datum and age <= ends[-1]:
                    window = min(w for w, end in enumerate(ends) if age <= end)
                    source["sums"][d] += value
                    while (
                        (made := sum(source["counts"][d])) < len(buckets)
                        and source["sums"][d] >= buckets[made]
                        and sum(map(sum, source["counts"])) < most_reports
                    ):
                        source["counts"][d][window] += 1
            return


def _told(sources, specification, time):
    found = []
    for x, source in enumerate(sources):
        output = source["counts"] if source["told"] is None else source["told"]
        for (datum, ends, _), row in zip(specification, output, strict=True):
            for window, (end, count) in enumerate(zip(ends, row, strict=True)):
                if count and source["time"] + end <= time:
                    found.append((x, datum, window, count))
    return sorted(found)
