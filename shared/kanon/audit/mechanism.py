"""The audit: tests whether the answers of the mechanism have the claimed distribution.

Many sets get the same joins at the same steps of two consecutive instances. The audit compares the steps at which
they cross with the exact first-crossing law. Goodness of fit finds bugs that a test of the privacy inequality
cannot (a wrong sign is still private). Probes with counts 0 and 200 have certain answers. They check the window,
the restart, the latch, and that distinct clients count. Tables are checked weight by weight, because no sample
shows the small probabilities of clamped tails.

This module audits the mechanism, in this process; ``kanon.audit.service`` audits the whole service.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import cached_property, partial
from hashlib import sha256
from types import ModuleType
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

import kanon.gate.mechanism
import kanon.gate.mechanism.above_threshold
import kanon.gate.mechanism.vectorised
from kanon.audit import goodness
from kanon.audit.goodness import Outcome
from kanon.gate.mechanism.exact_law import first_crossing
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.steps import PhaseRule
from kanon.noise.laws import Law, one_sided, two_sided
from kanon.noise.words import TOTAL

Ints = NDArray[np.int64]

ALPHA = 1e-6
"""The probability that a correct service fails an audit, over all its statistical tests."""

Path = Literal["plain", "vectorised", "service"]
"""The audited code: the definition, the code that the service runs, or the service itself."""

AUDITED = {
    "two-sided": Parameters(14, 24, 3600, two_sided(Fraction(3, 4), 7), two_sided(Fraction(3, 4), 6), client_bits=32),
    "one-sided": Parameters(12, 24, 3600, one_sided(Fraction(9, 10), 6), one_sided(Fraction(6, 5), 5), client_bits=32),
}
"""The types that are audited by default. They are small, so trials are cheap. Tokens have 32 bits, so no two clients
of a set share a token and the counts are certain."""


# ------------------------------------------------------------------------------------------ scenarios


@dataclass(frozen=True)
class Scenario:
    """The joins of a set: the clients that join at each step, counted from the first step of an instance.

    A client may appear at several steps, and twice at one step; it counts once.
    """

    window: int
    joined: tuple[tuple[int, ...], ...]

    @cached_property
    def counts(self) -> Ints:
        """The number of distinct clients in the window that ends at each step, (steps,)."""
        windows = (self.joined[max(0, r - self.window + 1) : r + 1] for r in range(len(self.joined)))
        return np.array([len({client for step in window for client in step}) for window in windows])


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
    """The smallest constant count at which an instance crosses with probability 0.4 or more."""
    counts = np.arange(parameters.surely_true_from + 1)
    never = first_crossing(parameters, np.repeat(counts[:, None], parameters.window, axis=1))[:, -1]
    return int(np.argmax(never <= 0.6))


# -------------------------------------------------------------------------------------- audited code


@dataclass(frozen=True)
class Subject:
    """The audited code for one type.

    ``decide(step, [(set key, state, clients)])`` gives the states after the step, ``fresh`` is the state of an
    unknown set, ``answer(set key, crossings, step)`` what a query reads.
    """

    parameters: Parameters
    fresh: Any
    decide: Callable[[int, Sequence[tuple[bytes, Any, Sequence[int]]]], list[Any]]
    answer: Callable[[bytes, tuple[int, ...], int], bool]


def subject(
    parameters: Parameters, secret: bytes, type_name: str, path: Path, code: ModuleType = kanon.gate.mechanism
) -> Subject:
    """The mechanism of the package ``code`` with the constants of ``parameters``, built by that package.

    Args:
        parameters: the claimed ones; ``code`` builds its own laws from the same numbers.
        secret: 32 bytes, the noise key.
        type_name: part of the name of every tape.
        path: ``plain`` or ``vectorised``.
        code: ``kanon.gate.mechanism``, or a copy of it.
    """
    window, rule = parameters.window, parameters.phase
    laws = (parameters.threshold_law, parameters.query_law)
    own_laws = [code.parameters.SHAPES[law.shape](law.epsilon, law.truncation) for law in laws]
    own = code.parameters.Parameters(parameters.k, window, parameters.period, *own_laws, parameters.client_bits, rule)
    tapes = code.tape.Tapes(code.tape.NoiseKey("audit", secret), "audit", type_name, own)

    def decide_plain(step: int, sets: Sequence[tuple[bytes, Any, Sequence[int]]]) -> list[Any]:
        return [
            code.above_threshold.evaluate(own, key, state, joined, step, partial(code.tape.Noise, tapes, key))
            for key, state, joined in sets
        ]

    def decide_vectorised(step: int, sets: Sequence[tuple[bytes, Any, Sequence[int]]]) -> list[Any]:
        after: list[Any] = code.vectorised.evaluate_all(own, lambda _first: tapes, step, sets)
        return after

    def answer(key: bytes, crossings: tuple[int, ...], step: int) -> bool:
        phase = code.steps.phase_of(key, window, rule)
        return bool(code.above_threshold.is_above(crossings, step, step, phase, window))

    decide = decide_plain if path == "plain" else decide_vectorised
    return Subject(parameters, code.above_threshold.SetState(), decide, answer)


FIRST_INSTANCE = 20_000
"""Steps of an audit are large numbers, like hours since 1970."""
ATTEMPTS = 3
"""The number of times that the queue delivers a message."""


def run(subject: Subject, scenarios: Mapping[bytes, Scenario]) -> Iterator[tuple[int, dict[bytes, Any]]]:
    """Evaluate sets step by step as the service does: only at steps with joins or a wake-up.

    Every step is evaluated :data:`ATTEMPTS` times from the same state, as after crashes before the state is
    written. The decisions of all attempts are released; the state of the last attempt is kept.

    Yields:
        The step, and the states of the sets touched at it. If attempts differ, the state of one that crossed.
    """
    window = subject.parameters.window
    joins: dict[int, dict[bytes, tuple[int, ...]]] = defaultdict(dict)
    for key, scenario in scenarios.items():
        for r, clients in enumerate(scenario.joined):
            if clients:
                joins[first_step_of(subject.parameters, key) + r][key] = clients
    wake_ups: dict[int, set[bytes]] = defaultdict(set)
    states: dict[bytes, Any] = {}
    longest = max(len(scenario.joined) for scenario in scenarios.values())
    begin = FIRST_INSTANCE * window
    for step in range(begin, begin + longest + window):
        rows = joins.pop(step, {})
        touched = sorted(rows.keys() | wake_ups.pop(step, set()))
        sets = [(key, states.get(key, subject.fresh), rows.get(key, ())) for key in touched]
        released: dict[bytes, Any] = {}
        for _ in range(ATTEMPTS if sets else 0):
            after = subject.decide(step, sets)
            for (key, before, _), state in zip(sets, after, strict=True):
                if key not in released or state.crossings != before.crossings:
                    released[key] = state
                if state.wake_up is not None:
                    wake_ups[state.wake_up].add(key)
        if sets:
            states.update(zip(touched, after, strict=True))
        yield step, released


def first_step_of(parameters: Parameters, set_key: bytes) -> int:
    """The step at which a set's scenario begins: the first step of :data:`FIRST_INSTANCE`."""
    return FIRST_INSTANCE * parameters.window + phase(set_key, parameters.window, parameters.phase)


def phase(set_key: bytes, window: int, rule: PhaseRule) -> int:
    """The documented phase of a set. The audit computes it without the audited code."""
    return int.from_bytes(set_key[24:32], "big") % window if rule == "hash" else 0


def crossing_steps(subject: Subject, keys: Sequence[bytes], scenario: Scenario) -> Ints:
    """The step at which each set crosses in its two instances: (sets, 2), from 0; the window if it does not cross."""
    window = scenario.window
    steps = np.full((len(keys), 2), window)
    rows = {key: row for row, key in enumerate(keys)}
    for step, released in run(subject, dict.fromkeys(keys, scenario)):
        for key, state in released.items():
            if state.crossings and state.crossings[-1] == step:
                instance, i = divmod(step - first_step_of(subject.parameters, key), window)
                if 0 <= instance < 2:
                    steps[rows[key], instance] = min(i, steps[rows[key], instance])
    return steps


# --------------------------------------------------------------------------------------------- report


@dataclass(frozen=True)
class Fit:
    """The result of a statistical test, without a verdict: the level depends on the number of tests."""

    name: str
    subject: str
    path: Path
    outcome: Outcome


@dataclass(frozen=True)
class Check:
    """One check of the audit, and its verdict.

    The last four attributes belong to statistical tests, which pass unless ``p_value`` is below ``threshold``.
    """

    name: str
    subject: str
    path: str
    trials: int
    passed: bool
    detail: str = ""
    cells: int | None = None
    statistic: float | None = None
    threshold: float | None = None
    p_value: float | None = None

    @property
    def verdict(self) -> str:
        """The verdict as one word."""
        return "passed" if self.passed else "rejected"


@dataclass(frozen=True)
class Report:
    """The result of an audit; ``alpha_each`` is the level of each of its statistical tests."""

    checks: tuple[Check, ...]
    alpha: float
    alpha_each: float

    @property
    def passed(self) -> bool:
        """Whether every check passed."""
        return all(check.passed for check in self.checks)

    def as_json(self) -> dict[str, Any]:
        """The report as JSON values; an infinite statistic (an impossible outcome was seen) is null."""
        checks = [asdict(check) | {"verdict": check.verdict} for check in self.checks]
        for check in checks:
            del check["passed"]
            if check["statistic"] == math.inf:
                check["statistic"] = None
        verdict = "passed" if self.passed else "rejected"
        return {"verdict": verdict, "alpha": self.alpha, "alpha_each": self.alpha_each, "checks": checks}


def judge(fits: Sequence[Fit], others: Iterable[Check] = (), alpha: float = ALPHA) -> Report:
    """The verdict. Each of n tests has the level ``alpha / n`` (Bonferroni), so together they err at most at alpha."""
    each = alpha / max(1, len(fits))
    checks = [
        Check(
            fit.name, fit.subject, fit.path, passed=fit.outcome.p_value >= each, threshold=each, **asdict(fit.outcome)
        )
        for fit in fits
    ]
    return Report((*checks, *others), alpha, each)


# -------------------------------------------------------------------- crossing steps: statistical tests


def fits(name: str, path: Path, parameters: Parameters, scenario: Scenario, steps: Sequence[Ints]) -> list[Fit]:
    """The tests of crossing steps, (sets, 2) for each of two types with the same sets.

    They test the marginals of both instances, their joint law, and the independence of neighbouring sets and of
    the two types. Noise is independent everywhere, so every joint law is a product.
    """
    window = scenario.window
    laws = [first_crossing(parameters, counts) for counts in (scenario.counts[:window], scenario.counts[window:])]
    instances = np.concatenate(steps)
    pairs = len(steps[0]) // 2 * 2
    sets = [np.concatenate([each[start:pairs:2, 0] for each in steps]) for start in (0, 1)]
    types = [each[:, 0] for each in steps]
    outcomes = {
        "crossing step, first instance": goodness.marginal(instances[:, 0], laws[0]),
        "crossing step, second instance": goodness.marginal(instances[:, 1], laws[1]),
        "crosses at all, first instance": goodness.crossings(instances[:, 0], laws[0]),
        "crosses at all, second instance": goodness.crossings(instances[:, 1], laws[1]),
        "two instances, joint law": goodness.joint(instances[:, 0], instances[:, 1], laws[0], laws[1]),
        "two instances, equal steps": goodness.coincidences(instances[:, 0], instances[:, 1], laws[0], laws[1]),
        "two sets, joint law": goodness.joint(sets[0], sets[1], laws[0], laws[0]),
        "two sets, equal steps": goodness.coincidences(sets[0], sets[1], laws[0], laws[0]),
        "two types, joint law": goodness.joint(types[0], types[1], laws[0], laws[0]),
        "two types, equal steps": goodness.coincidences(types[0], types[1], laws[0], laws[0]),
    }
    return [Fit(test, name, path, outcome) for test, outcome in outcomes.items()]


def fits_in_process(
    name: str, parameters: Parameters, trials: int, seed: int, path: Path, code: ModuleType = kanon.gate.mechanism
) -> list[Fit]:
    """The tests of the mechanism: half of the trials in each of two types with the same sets."""
    scenario = rise_and_fall(parameters)
    keys = [sha256(f"audit {seed} set {n}".encode()).digest() for n in range(trials // 2)]
    secret = sha256(f"audit {seed}".encode()).digest()
    types = [subject(parameters, secret, type_name, path, code) for type_name in ("audit-a", "audit-b")]
    return fits(name, path, parameters, scenario, [crossing_steps(each, keys, scenario) for each in types])


# ---------------------------------------------------------------------------- probes: certain answers


def probed(window: int, period: int) -> dict[str, Parameters]:
    """The types that are probed, by phase rule.

    A count below 51 never crosses and a count from 149 on always does, so the answers for 0 and 200 are certain.
    """
    laws = two_sided(Fraction(3, 4), 25), two_sided(Fraction(3, 4), 24)
    rules: tuple[PhaseRule, ...] = ("hash", "zero")
    return {rule: Parameters(100, window, period, *laws, client_bits=32, phase=rule) for rule in rules}


CROWD = 200


@dataclass(frozen=True)
class Probe:
    """Joins with certain answers in three instances: true exactly at the steps ``true``."""

    name: str
    scenario: Scenario
    true: range


def probes(window: int) -> list[Probe]:
    """The probes of a type, named by what they check."""
    crowd = tuple(range(CROWD))
    few = tuple(range(8)) * 2
    steps = 3 * window

    def scenario(joined: Mapping[int, tuple[int, ...]]) -> Scenario:
        return Scenario(window, tuple(joined.get(r, ()) for r in range(steps)))

    return [
        Probe("200 clients at the first step: the window is not too long", scenario({0: crowd}), range(window)),
        Probe(
            "200 clients at the second step: the window is not too short, and true stays true",
            scenario({1: crowd}),
            range(1, 2 * window),
        ),
        Probe(
            "200 clients at the last step: a restart forgets the crossing",
            scenario({window - 1: crowd}),
            range(window - 1, 2 * window),
        ),
        Probe(
            "200 clients that come back: only their last join counts",
            scenario(dict.fromkeys((0, max(1, window // 3)), crowd)),
            range(2 * window),
        ),
        Probe(
            "8 clients joining 400 times: distinct clients count",
            scenario(dict.fromkeys(range(window + 1), few)),
            range(0),
        ),
        Probe("one client: never reported", scenario({0: (0,)}), range(0)),
    ]


def judge_probe(probe: Probe, rule: str, path: Path, answers: Sequence[Mapping[int, bool]]) -> Check:
    """Compare the answers of each set by step, counted from the first step of its scenario."""
    wrong = [r for of_set in answers for r, above in of_set.items() if above != (r in probe.true)]
    detail = f"{len(wrong)} wrong answers, the first at step {wrong[0]}" if wrong else ""
    return Check(f"probe: {probe.name}", f"phase {rule}", path, len(answers), not wrong, detail)


def probes_in_process(path: Path, window: int = 24, code: ModuleType = kanon.gate.mechanism) -> list[Check]:
    """All probes, at several phases, for both phase rules."""
    checks = []
    for rule, parameters in probed(window, 3600).items():
        own = subject(parameters, bytes(32), "audit-probe", path, code)
        phases = (0, 1, window // 2, window - 1)
        keys = {
            (n, at): sha256(f"probe {n} {at}".encode()).digest()[:24] + at.to_bytes(8, "big")
            for n in range(len(probes(window)))
            for at in phases
        }
        scenarios = {key: probes(window)[n].scenario for (n, _), key in keys.items()}
        answers = answers_in_process(own, scenarios)
        checks += [
            judge_probe(probe, rule, path, [answers[keys[n, at]] for at in phases])
            for n, probe in enumerate(probes(window))
        ]
    return checks


def answers_in_process(subject: Subject, scenarios: Mapping[bytes, Scenario]) -> dict[bytes, dict[int, bool]]:
    """The answer of each set at each step of its scenario, counted from its first step."""
    crossings: dict[bytes, tuple[int, ...]] = dict.fromkeys(scenarios, ())
    answers: dict[bytes, dict[int, bool]] = {key: {} for key in scenarios}
    for step, released in run(subject, scenarios):
        crossings.update({key: state.crossings for key, state in released.items()})
        for key, scenario in scenarios.items():
            r = step - first_step_of(subject.parameters, key)
            if 0 <= r < len(scenario.joined):
                answers[key][r] = subject.answer(key, crossings[key], step)
    return answers


# -------------------------------------------------------------------------------- tables: exact checks


def check_table(name: str, law: Law, code: ModuleType = kanon.gate.mechanism) -> Check:
    """Compare every weight of a law with ``floor(2^64 p(x))``, and draw at every boundary of its table.

    The expected weights are computed with 120 decimal digits, without any code of ``laws``.
    """
    own = code.parameters.SHAPES[law.shape](law.epsilon, law.truncation)
    expected = expected_weights(law.shape, law.epsilon, law.truncation)
    wrong = sum(
        own.weight(x) != expected.get(x, 0) for x in range(min(own.min, *expected), max(own.max, *expected) + 1)
    )
    below = 0
    for x, weight in sorted(expected.items()):
        wrong += own.draw(below) != x or own.draw(below + weight - 1) != x
        below += weight
    detail = f"{wrong} weights or boundaries differ" if wrong else ""
    title = f"table: {law.shape}, epsilon {float(law.epsilon):g}, truncation {law.truncation}"
    return Check(title, name, "table", len(expected), not wrong, detail)


def expected_weights(shape: str, epsilon: Fraction, truncation: int) -> dict[int, int]:
    """The weights by outcome as the documentation defines them."""
    lowest = {"two-sided": -truncation, "one-sided": 0}[shape]  # not ``law.min``, which is checked
    outcomes = range(lowest, truncation + 1)
    with localcontext() as context:
        context.prec = 120
        rate = Decimal(epsilon.numerator) / Decimal(epsilon.denominator)
        mass = {x: (-rate * abs(x)).exp() for x in outcomes}
        total = sum(mass.values())
        weights = {x: int(TOTAL * mass[x] / total) for x in outcomes}
    weights[0] += TOTAL - sum(weights.values())
    return weights


def audit_in_process(types: Mapping[str, Parameters], trials: int, seed: int) -> tuple[list[Fit], list[Check]]:
    """All checks that need no service. The plain module is slow, so it gets a tenth of the trials."""
    shares: dict[Path, int] = {"vectorised": trials, "plain": max(200, trials // 10)}
    found = [
        fit
        for path, share in shares.items()
        for name, parameters in types.items()
        for fit in fits_in_process(name, parameters, share, seed, path)
    ]
    windows = {parameters.window for parameters in types.values()}
    checks = [check for path in shares for window in windows for check in probes_in_process(path, window)]
    checks += [
        check_table(name, law)
        for name, parameters in types.items()
        for law in (parameters.threshold_law, parameters.query_law)
    ]
    return found, checks
