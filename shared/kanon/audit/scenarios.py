"""What an audit joins, and which answers of it are certain.

A scenario holds the joins of a set. On a grid it begins with an instance; with restart after the crossing it lies
around the end of an epoch. Counts near the threshold are for the statistical tests; counts 0 and 200 have certain
answers.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import numpy as np

from kanon.audit.goodness import Ints
from kanon.gate.mechanism.exact_law import first_crossing
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters
from kanon.gate.mechanism.steps import PhaseRule
from kanon.noise.laws import two_sided

FIRST_STEP = 480_000
"""Steps of an audit are large numbers, like hours since 1970."""
BEFORE = 6
"""A scenario begins at most so many windows before the end of an epoch."""
SOON = 4
"""With restart after the crossing, an audit takes sets whose scenario begins in so many steps: an epoch may be long."""


@dataclass(frozen=True)
class Scenario:
    """The joins of a set: the clients that join at each step, counted from the first step of the scenario.

    A client may appear at several steps, and twice at one step; it counts once.
    """

    window: int
    joined: tuple[tuple[int, ...], ...]

    @cached_property
    def counts(self) -> Ints:
        """The number of distinct clients in the window that ends at each step, (steps,)."""
        return self.counts_since(0)

    def counts_since(self, since: int) -> Ints:
        """:attr:`counts` of the joins from the step ``since`` on."""
        windows = (self.joined[max(since, r - self.window + 1) : r + 1] for r in range(len(self.joined)))
        return np.array([len({client for step in window for client in step}) for window in windows])


def first_step_of(parameters: Parameters, set_key: bytes) -> int:
    """The step at which a set's scenario begins: the first one from :data:`FIRST_STEP` on at its place in a cycle."""
    place = phase(set_key, parameters.cycle, parameters.phase) + before_end(parameters)
    return FIRST_STEP + (place - FIRST_STEP) % parameters.cycle


def phase(set_key: bytes, cycle: int, rule: PhaseRule) -> int:
    """The documented phase of a set. The audit computes it without the audited code."""
    return int.from_bytes(set_key[24:32], "big") % cycle if rule == "hash" else 0


def before_end(parameters: Parameters) -> int:
    """The number of steps of an epoch, or an instance, before a scenario begins."""
    return 0 if parameters.restart is None else max(0, parameters.restart.epoch - BEFORE * parameters.window)


def key_that_begins_soon(parameters: Parameters, digest: bytes, number: int) -> bytes:
    """A set key like ``digest``; with restart after the crossing, one whose scenario begins soon."""
    if parameters.restart is None:
        return digest
    wanted = FIRST_STEP + number % min(SOON, parameters.cycle) - before_end(parameters)
    return digest[:24] + (wanted % parameters.cycle).to_bytes(8, "big")


def key_change(parameters: Parameters) -> int:
    """The step from which new searches use another noise key (restart after the crossing): often inside a search."""
    return FIRST_STEP + (parameters.cycle - before_end(parameters)) // 2


def scenario_of(parameters: Parameters) -> Scenario:
    """The joins of the statistical tests of a type."""
    return rise_and_fall(parameters) if parameters.restart is None else tides(parameters)


def tides(parameters: Parameters) -> Scenario:
    """The end of an epoch and the next one. Sets cross early, late, twice or never: counts stay near the threshold.

    Nobody joins at most steps, and one client returns at every third step, as in :func:`rise_and_fall`.
    """
    w, low = parameters.window, likely_count(parameters)
    steps = 2 * (parameters.cycle - before_end(parameters))
    joined: list[tuple[int, ...]] = [(0, 0) if r % 3 == 0 else () for r in range(steps)]
    for r in range(0, len(joined), w // 2):
        joined[r] = (*joined[r], *range(low - 1 + r // w % 3))
    return Scenario(w, tuple(joined))


def rise_and_fall(parameters: Parameters) -> Scenario:
    """Two instances whose counts stay constant, rise and fall near the threshold.

    Nobody joins at two of three steps, so the look-ahead finds most crossings. One client returns at every third
    step, so the numbers of joins and of distinct clients differ, and a retry could draw other noise. The second
    instance begins with members of the first.
    """
    w = parameters.window
    low = likely_count(parameters)
    joined = [(0, 0) if r % 3 == 0 else () for r in range(2 * w)]
    more = {
        0: range(low),
        2 * w // 3: range(low - 1, low + 3),
        w - 2: range(low - 1),
        w + w // 4: range(low + 1, low + 4),
        w + 2 * w // 3: range(low + 4, low + 8),
    }
    for r, clients in more.items():
        joined[r] = (*joined[r], *clients)
    return Scenario(w, tuple(joined))


def likely_count(parameters: Parameters) -> int:
    """The smallest constant count with which a set crosses with probability 0.4 or more, in an instance or epoch."""
    counts, steps = np.arange(parameters.surely_true_from + 1), parameters.cycle - before_end(parameters)
    never = first_crossing(parameters, np.repeat(counts[:, None], steps, axis=1))[:, -1]
    return int(np.argmax(never <= 0.6))


def probed(like: Parameters) -> dict[str, Parameters]:
    """The types that are probed instead of ``like``, by phase rule.

    A count below 51 never crosses and a count from 149 on always does, so the answers for 0 and 200 are certain. With
    restart after the crossing these are 81 and 119, so twice a count that is certainly false is certainly true.
    """
    laws = two_sided(Fraction(3, 4), 25), two_sided(Fraction(3, 4), 24)
    rules: tuple[PhaseRule, ...] = ("hash", "zero")
    if like.restart is not None:
        laws, rules = (two_sided(Fraction(3, 4), 10), two_sided(Fraction(3, 4), 9)), ("hash",)
    return {
        rule: Parameters(100, like.window, like.period, *laws, client_bits=32, phase=rule, restart=like.restart)
        for rule in rules
    }


CROWD = 200


@dataclass(frozen=True)
class Probe:
    """Joins with certain answers: true exactly at the steps ``true``."""

    name: str
    scenario: Scenario
    true: range


_CROWD = tuple(range(CROWD))
_FEW = tuple(range(8)) * 2
_SOME, _OTHERS = tuple(range(60)), tuple(range(60, 120))
"""Certainly too few, and certainly enough together."""


def probes(parameters: Parameters) -> list[Probe]:
    """The probes of a type, named by what they check."""
    if parameters.restart is None:
        return _probes_of_a_grid(parameters.window)
    return list(_probes_around_an_epoch(parameters, parameters.restart))


def _probes_of_a_grid(window: int) -> list[Probe]:
    steps = 3 * window

    def scenario(joined: Mapping[int, tuple[int, ...]]) -> Scenario:
        return Scenario(window, tuple(joined.get(r, ()) for r in range(steps)))

    return [
        Probe("200 clients at the first step: the window is not too long", scenario({0: _CROWD}), range(window)),
        Probe(
            "200 clients at the second step: the window is not too short, and true stays true",
            scenario({1: _CROWD}),
            range(1, 2 * window),
        ),
        Probe(
            "200 clients at the last step: a restart forgets the crossing",
            scenario({window - 1: _CROWD}),
            range(window - 1, 2 * window),
        ),
        Probe(
            "200 clients that come back: only their last join counts",
            scenario(dict.fromkeys((0, max(1, window // 3)), _CROWD)),
            range(2 * window),
        ),
        Probe(
            "8 clients joining 400 times: distinct clients count",
            scenario(dict.fromkeys(range(window + 1), _FEW)),
            range(0),
        ),
        Probe("one client: never reported", scenario({0: (0,)}), range(0)),
    ]


def _probes_around_an_epoch(parameters: Parameters, restart: CrossingRestart) -> Iterator[Probe]:
    """An epoch begins at step ``begins``; before it, a set that has not crossed is searching."""
    window, hold = parameters.window, restart.hold
    begins = parameters.cycle - before_end(parameters)
    steps = begins + 2 * hold + 2 * window

    def scenario(*joined: int, clients: tuple[int, ...] = _CROWD) -> Scenario:
        return Scenario(window, tuple(clients if r in joined else () for r in range(steps)))

    def some_and_others(some: int, others: int) -> Scenario:
        joined = {some: _SOME, others: _OTHERS}
        return Scenario(window, tuple(joined.get(r, ()) for r in range(steps)))

    last = begins - 1
    yield Probe(
        "200 clients at the last step of an epoch, gone when their status ends: it lasts one hold",
        scenario(last, last + hold - window),
        range(last, last + hold),
    )
    yield Probe(
        "200 clients still there when their status ends: the next search begins at once",
        scenario(last, last + hold - 1),
        range(last, last + 2 * hold),
    )
    yield Probe(
        "200 clients at the first step of an epoch: they cross there",
        scenario(begins),
        range(begins, begins + hold),
    )
    yield Probe(
        "60 clients at the last step of an epoch, 60 at the next step: the epoch counts from 0",
        some_and_others(last, begins),
        range(0),
    )
    yield Probe(
        "60 clients at the first step of an epoch, 60 one window later: only the window counts",
        some_and_others(begins, begins + window),
        range(0),
    )
    yield Probe(
        "60 clients at the first step of an epoch, 60 just in the window: they cross together",
        some_and_others(begins, last + window),
        range(last + window, last + window + hold),
    )
    if (early := begins - hold + 1) >= window - 1:
        yield Probe(
            "200 clients whose status ends after the end of the epoch: they still count",
            scenario(early, early + hold - 1),
            range(early, early + 2 * hold),
        )
    yield Probe(
        "8 clients joining 400 times: distinct clients count",
        scenario(*range(begins - window, begins + window), clients=_FEW),
        range(0),
    )
    yield Probe("one client: never reported", scenario(last, clients=(0,)), range(0))
