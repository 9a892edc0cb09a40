"""The audit: tests whether the answers of the mechanism have the claimed distribution.

Many sets get the same joins at the same steps of two consecutive instances, or with restart after the crossing of two
epochs. The audit compares the steps at which they cross with the exact law. Goodness of fit finds bugs that a test of
the privacy inequality cannot (a wrong sign is still private). Probes with counts 0 and 200 have certain answers. They
check the window, the restart, the latch, and that distinct clients count. Tables are checked weight by weight, because
no sample shows the small probabilities of clamped tails.

This module audits the mechanism, in this process; ``kanon.audit.service`` audits the whole service.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import Decimal, localcontext
from fractions import Fraction
from functools import partial
from hashlib import sha256
from itertools import combinations
from types import ModuleType
from typing import Any, Literal

import numpy as np

import kanon.gate.mechanism
import kanon.gate.mechanism.above_threshold
import kanon.gate.mechanism.vectorised
from kanon.audit import goodness
from kanon.audit.goodness import FitResult, Floats, Ints
from kanon.audit.scenarios import (
    Probe,
    Scenario,
    before_end,
    first_step_of,
    key_change,
    key_that_begins_soon,
    probed,
    probes,
    scenario_of,
)
from kanon.gate.mechanism.exact_law import Span, first_crossing, next_crossing, over_span
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters
from kanon.noise.laws import Law, one_sided, two_sided
from kanon.noise.words import TOTAL

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

AFTER_CROSSINGS = {
    "crossing": Parameters(
        12, 8, 3600, one_sided(Fraction(9, 10), 6), one_sided(Fraction(6, 5), 5), 32, restart=CrossingRestart(10, 48)
    ),
}
"""The types with restart after the crossing that are audited too."""


# -------------------------------------------------------------------------------------- audited code


@dataclass(frozen=True)
class Subject:
    """The audited code for one type.

    ``decide(step, [(set key, state, clients)])`` gives the states after the step, ``fresh`` is the state of an
    unknown set, ``answer(set key, crossings, visible step, clock step)`` what a query reads.
    """

    parameters: Parameters
    fresh: Any
    decide: Callable[[int, Sequence[tuple[bytes, Any, Sequence[int]]]], list[Any]]
    answer: Callable[[bytes, tuple[int, ...], int, int], bool]


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
    laws = (parameters.threshold_law, parameters.query_law)
    own_laws = [code.parameters.SHAPES[law.shape](law.epsilon, law.truncation) for law in laws]
    restart = parameters.restart and code.parameters.CrossingRestart(parameters.restart.hold, parameters.restart.epoch)
    own = code.parameters.Parameters(
        parameters.k, parameters.window, parameters.period, *own_laws, parameters.client_bits, parameters.phase, restart
    )
    key_of = {False: code.tape.NoiseKey("audit", secret), True: code.tape.NoiseKey("audit-2", secret)}
    all_tapes = {
        is_later: code.tape.Tapes(noise_key, "audit", type_name, own) for is_later, noise_key in key_of.items()
    }

    def tapes_of(first: int) -> Any:
        return all_tapes[restart is not None and first >= key_change(parameters)]

    def noise_of(key: bytes, place: int) -> Any:
        return code.tape.Noise(tapes_of(place), key, place)

    def decide_plain(step: int, sets: Sequence[tuple[bytes, Any, Sequence[int]]]) -> list[Any]:
        return [
            code.above_threshold.evaluate(own, key, state, joined, step, partial(noise_of, key))
            for key, state, joined in sets
        ]

    def decide_vectorised(step: int, sets: Sequence[tuple[bytes, Any, Sequence[int]]]) -> list[Any]:
        after: list[Any] = code.vectorised.evaluate_all(own, tapes_of, step, sets)
        return after

    def answer(key: bytes, crossings: tuple[int, ...], visible: int, step: int) -> bool:
        return bool(code.above_threshold.is_above(code.searches.Searches.of(own, key), crossings, visible, step))

    decide = decide_plain if path == "plain" else decide_vectorised
    return Subject(parameters, code.above_threshold.SetState(), decide, answer)


ATTEMPTS = 3
"""The number of times that the queue delivers a message."""


def run(subject: Subject, scenarios: Mapping[bytes, Scenario]) -> Iterator[tuple[int, dict[bytes, Any]]]:
    """Evaluate sets step by step as the service does: only at steps with joins or a wake-up.

    Every step is evaluated :data:`ATTEMPTS` times from the same state, as after crashes before the state is
    written. The decisions of all attempts are released; the state of the last attempt is kept.

    Yields:
        The step, and the states of the sets touched at it. If attempts differ, the state of one that crossed.
    """
    parameters = subject.parameters
    joins: dict[int, dict[bytes, tuple[int, ...]]] = defaultdict(dict)
    for key, scenario in scenarios.items():
        for r, clients in enumerate(scenario.joined):
            if clients:
                joins[first_step_of(parameters, key) + r][key] = clients
    wake_ups: dict[int, set[bytes]] = defaultdict(set)
    states: dict[bytes, Any] = {}
    for step in steps_of({first_step_of(parameters, key): len(each.joined) for key, each in scenarios.items()}):
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


def steps_of(lengths: Mapping[int, int]) -> range:
    """The steps of scenarios with these first steps and lengths."""
    return range(min(lengths), max(first + length for first, length in lengths.items()))


def crossing_steps(subject: Subject, keys: Sequence[bytes], scenario: Scenario) -> Ints:
    """The step at which each set crosses in its two instances: (sets, 2), from 0; the window if it does not cross.

    With restart after the crossing, (sets, 3): the steps of its first two crossings, the number of steps if there is
    none; and whether it is true at the last step.
    """
    found: dict[bytes, list[int]] = {key: [] for key in keys}
    for step, released in run(subject, dict.fromkeys(keys, scenario)):
        for key, state in released.items():
            r = step - first_step_of(subject.parameters, key)
            if state.crossings and state.crossings[-1] == step and 0 <= r < len(scenario.joined):
                found[key].append(r)
    return first_two(subject.parameters, list(found.values()), len(scenario.joined))


def first_two(parameters: Parameters, crossings: Sequence[Sequence[int]], steps: int) -> Ints:
    """The crossings of sets, oldest first and counted from 0, in the form of :func:`crossing_steps`."""
    if parameters.restart is not None:
        last = steps - parameters.restart.hold  # true at the last step
        return np.array([(*(*of_set, steps, steps)[:2], max(of_set, default=-1) >= last) for of_set in crossings])
    window = parameters.window
    table = np.full((len(crossings), 2), window)
    for row, of_set in enumerate(crossings):
        for r in of_set[::-1]:
            table[row, r // window] = r % window
    return table


# --------------------------------------------------------------------------------------------- report


@dataclass(frozen=True)
class Fit:
    """The result of a statistical test, without a verdict: the level depends on the number of tests."""

    name: str
    subject: str
    path: Path
    outcome: FitResult


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
class AuditReport:
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


def judge(fits: Sequence[Fit], others: Iterable[Check] = ()) -> AuditReport:
    """The verdict. Each of n tests has the level ``ALPHA / n`` (Bonferroni), so together they err at most at ALPHA."""
    each = ALPHA / max(1, len(fits))
    checks = [
        Check(
            fit.name, fit.subject, fit.path, passed=fit.outcome.p_value >= each, threshold=each, **asdict(fit.outcome)
        )
        for fit in fits
    ]
    return AuditReport((*checks, *others), ALPHA, each)


# -------------------------------------------------------------------- crossing steps: statistical tests


def fits(name: str, path: Path, parameters: Parameters, scenario: Scenario, steps: Sequence[Ints]) -> list[Fit]:
    """The tests of :func:`crossing_steps` for each of two types with the same sets.

    They test the marginals of both instances, their joint law, and the independence of neighbouring sets and of
    the two types. Noise is independent everywhere, so every joint law is a product.
    """
    if parameters.restart is None:
        laws, outcomes = _fits_of_instances(parameters, scenario, np.concatenate(steps))
    else:
        laws, outcomes = _fits_of_searches(parameters, scenario, np.concatenate(steps))
    pairs = len(steps[0]) // 2 * 2
    sets = [np.concatenate([each[start:pairs:2, 0] for each in steps]) for start in (0, 1)]
    types = [each[:, 0] for each in steps]
    outcomes |= {
        "two sets, joint law": goodness.joint(sets[0], sets[1], laws, laws),
        "two sets, equal steps": goodness.coincidences(sets[0], sets[1], laws, laws),
        "two types, joint law": goodness.joint(types[0], types[1], laws, laws),
        "two types, equal steps": goodness.coincidences(types[0], types[1], laws, laws),
    }
    return [Fit(test, name, path, outcome) for test, outcome in outcomes.items()]


def _fits_of_instances(
    parameters: Parameters, scenario: Scenario, instances: Ints
) -> tuple[Floats, dict[str, FitResult]]:
    """The law of the crossing step in the first instance, and the tests of both instances, (sets, 2)."""
    window = scenario.window
    laws = [first_crossing(parameters, counts) for counts in (scenario.counts[:window], scenario.counts[window:])]
    return laws[0], {
        "crossing step, first instance": goodness.marginal(instances[:, 0], laws[0]),
        "crossing step, second instance": goodness.marginal(instances[:, 1], laws[1]),
        "crosses at all, first instance": goodness.crossings(instances[:, 0], laws[0]),
        "crosses at all, second instance": goodness.crossings(instances[:, 1], laws[1]),
        "two instances, joint law": goodness.joint(instances[:, 0], instances[:, 1], laws[0], laws[1]),
        "two instances, equal steps": goodness.coincidences(instances[:, 0], instances[:, 1], laws[0], laws[1]),
    }


def _fits_of_searches(parameters: Parameters, scenario: Scenario, found: Ints) -> tuple[Floats, dict[str, FitResult]]:
    """The law of the first crossing, and the tests of the first two and of the last answer, (sets, 3)."""
    never, steps, last = len(scenario.joined), found[:, :2], found[:, 2]
    span = Span(never, scenario.counts_since, before_end(parameters))
    first, at_last = next_crossing(parameters, span), float(over_span(parameters, span).true[-1])
    second = np.array([next_crossing(parameters, span, j) for j in range(never)])
    pairs = np.zeros((never + 1, never + 1))
    pairs[:never], pairs[never, never] = first[:-1, None] * second, first[never]
    delays = np.full((never + 1, never + 1, 2), never)  # of the two crossings after the first steps of their searches
    for j, x in combinations(range(never + 1), 2):
        if pairs[j, x] > 0:
            delays[j, x] = _delay(parameters, j), never if x == never else _delay(parameters, x, j)
    law = np.zeros((never + 1, never + 1))
    np.add.at(law, tuple(delays.reshape(-1, 2).T), pairs.ravel())
    seen = delays[tuple(steps.T)]
    return first, {
        "first crossing": goodness.marginal(steps[:, 0], first),
        "second crossing": goodness.marginal(steps[:, 1], pairs.sum(axis=0)),
        "crosses at all": goodness.crossings(steps[:, 0], first),
        "crosses twice": goodness.crossings(steps[:, 1], pairs.sum(axis=0)),
        "two crossings, joint law": goodness.marginal(steps[:, 0] * (never + 1) + steps[:, 1], pairs.ravel()),
        "two searches, joint delays": goodness.dependent(seen[:, 0], seen[:, 1], law),
        "two searches, equal delays": goodness.binomial(
            int((np.diff(seen)[:, 0] == 0)[seen[:, 0] < never].sum()), len(steps), float(np.trace(law[:-1, :-1]))
        ),
        "true at the last step, after many searches": goodness.binomial(int(last.sum()), len(last), at_last),
    }


def _delay(parameters: Parameters, crossing: int, before: int | None = None) -> int:
    """How many steps of its search, in a scenario, come before a crossing; ``before`` is the crossing before it."""
    first, hold = _epoch_of(parameters, crossing), parameters.restart.hold  # type: ignore[union-attr]
    if before is not None and before + hold >= _epoch_of(parameters, crossing):
        first = before + hold
    return crossing - max(first, 0)


def _epoch_of(parameters: Parameters, step: int) -> int:
    """The first step of the epoch of a step of a scenario; both are counted from the scenario's first step."""
    before = before_end(parameters)
    return (step + before) // parameters.cycle * parameters.cycle - before


def fits_in_process(
    name: str, parameters: Parameters, trials: int, seed: int, path: Path, code: ModuleType = kanon.gate.mechanism
) -> list[Fit]:
    """The tests of the mechanism: half of the trials in each of two types with the same sets."""
    scenario = scenario_of(parameters)
    digests = [sha256(f"audit {seed} set {n}".encode()).digest() for n in range(trials // 2)]
    keys = [key_that_begins_soon(parameters, digest, n) for n, digest in enumerate(digests)]
    secret = sha256(f"audit {seed}".encode()).digest()
    types = [subject(parameters, secret, type_name, path, code) for type_name in ("audit-a", "audit-b")]
    return fits(name, path, parameters, scenario, [crossing_steps(each, keys, scenario) for each in types])


# ---------------------------------------------------------------------------- probes: certain answers


def judge_probe(probe: Probe, rule: str, path: Path, answers: Sequence[Mapping[int, bool]]) -> Check:
    """Compare the answers of each set by step, counted from the first step of its scenario."""
    wrong = [r for of_set in answers for r, above in of_set.items() if above != (r in probe.true)]
    detail = f"{len(wrong)} wrong answers, the first at step {wrong[0]}" if wrong else ""
    return Check(f"probe: {probe.name}", f"phase {rule}", path, len(answers), not wrong, detail)


def probes_in_process(path: Path, like: Parameters, code: ModuleType = kanon.gate.mechanism) -> list[Check]:
    """All probes of a type, at several phases, for both phase rules."""
    checks = []
    cycle = like.cycle
    for rule, parameters in probed(like).items():
        own = subject(parameters, bytes(32), "audit-probe", path, code)
        phases = (0, 1, cycle // 2, cycle - 1)
        keys = {
            (n, at): sha256(f"probe {n} {at}".encode()).digest()[:24] + at.to_bytes(8, "big")
            for n in range(len(probes(like)))
            for at in phases
        }
        scenarios = {key: probes(like)[n].scenario for (n, _), key in keys.items()}
        answers = answers_in_process(own, scenarios)
        checks += [
            judge_probe(probe, rule, path, [answers[keys[n, at]] for at in phases])
            for n, probe in enumerate(probes(like))
        ]
    return checks


LAG = 2
"""An answer is also asked when the visible step is so many steps behind the clock."""


def answers_in_process(subject: Subject, scenarios: Mapping[bytes, Scenario]) -> dict[bytes, dict[int, bool]]:
    """The answer of each set at each step of its scenario, counted from its first step.

    With restart after the crossing it must not depend on the clock step; if it does, the answer is the wrong one.
    """
    restart = subject.parameters.restart
    crossings: dict[bytes, tuple[int, ...]] = dict.fromkeys(scenarios, ())
    answers: dict[bytes, dict[int, bool]] = {key: {} for key in scenarios}
    for step, released in run(subject, scenarios):
        crossings.update({key: state.crossings for key, state in released.items()})
        for key, scenario in scenarios.items():
            r = step - first_step_of(subject.parameters, key)
            if 0 <= r < len(scenario.joined):
                answers[key][r] = subject.answer(key, crossings[key], step, step)
                if restart is not None and subject.answer(key, crossings[key], step, step + LAG) != answers[key][r]:
                    answers[key][r] = not answers[key][r]
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
    alike = {(p.window, p.period, p.restart): p for p in types.values()}
    checks = [
        check for path in shares for parameters in alike.values() for check in probes_in_process(path, parameters)
    ]
    checks += [
        check_table(name, law)
        for name, parameters in types.items()
        for law in (parameters.threshold_law, parameters.query_law)
    ]
    return found, checks
