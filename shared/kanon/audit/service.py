"""The audit of the whole service: joins over HTTP, evaluation by schedule and queue, answers over HTTP.

It runs on the local stack (``kanon.local``, built from template.yaml) with its own types and changes nothing inside
the service. It reads the set pepper, because each scenario begins at the first step of an instance of its set.
"""

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256

import numpy as np

from kanon.audit.mechanism import (
    FIRST_INSTANCE,
    Check,
    Fit,
    Ints,
    Scenario,
    first_step_of,
    fits,
    judge_probe,
    probed,
    probes,
    rise_and_fall,
)
from kanon.client import Client, Join, encoded
from kanon.errors import Error
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.names import set_key
from kanon.gate.types import Type
from kanon.keys import Secret
from kanon.local import Stack
from kanon.plan.planner import type_document

Place = tuple[str, bytes]
"""Type name and set id."""

SLOTS = 2
LOG_REACHES_BACK = 172_800
"""Seconds; the smallest value that the template allows, because the first evaluation reads all of it."""


def audit_service(types: Mapping[str, Parameters], trials: int, seed: int) -> tuple[list[Fit], list[Check]]:
    """The crossing steps of ``trials`` sets of each type, and the probes, as clients see them.

    All types have the same window and period. Client tokens have 32 bits, because two clients that share a token
    count as one.

    Raises:
        ApiError: the service answered a request with an error.
        LateError: an evaluation was late.
    """
    ((window, period),) = {(parameters.window, parameters.period) for parameters in types.values()}
    scenarios: dict[Place, Scenario] = {}
    configured: dict[str, Parameters] = {}
    sets = [sha256(f"audit {seed} set {n}".encode()).digest() for n in range(trials // 2)]
    for name, parameters in types.items():
        for twin in _twins(name):
            configured[twin] = replace(parameters, client_bits=32)
            scenarios |= {(twin, set_id): rise_and_fall(parameters) for set_id in sets}
    for rule, parameters in probed(window, period).items():
        configured[f"audit-probe-{rule}"] = parameters
        for n, probe in enumerate(probes(window)):
            scenarios[f"audit-probe-{rule}", bytes([n])] = probe.scenario
    answers = answers_of_service(configured, scenarios, seed)
    found, checks = [], []
    for name, parameters in types.items():
        steps = [_crossings([answers[twin, set_id] for set_id in sets], window) for twin in _twins(name)]
        found += fits(name, "service", parameters, rise_and_fall(parameters), steps)
        observed = [answers[twin, set_id] for twin in _twins(name) for set_id in sets]
        unstable = sum(not _latched(of_set, window) for of_set in observed)
        detail = f"{unstable} sets turned false inside an instance" if unstable else ""
        checks.append(Check("true stays true", name, "service", len(observed), not unstable, detail))
    for rule in probed(window, period):
        for n, probe in enumerate(probes(window)):
            checks.append(judge_probe(probe, rule, "service", [answers[f"audit-probe-{rule}", bytes([n])]]))
    return found, checks


class LateError(Error, RuntimeError):
    """The answers are not those of the current step, so the audit cannot judge them."""


def answers_of_service(
    types: Mapping[str, Parameters], scenarios: Mapping[Place, Scenario], seed: int
) -> dict[Place, dict[int, bool]]:
    """The answer for each set at each step of its scenario, counted from its first step."""
    ((window, period),) = {(p.window, p.period) for p in types.values()}
    begin = FIRST_INSTANCE * window
    parameters = {
        "Types": json.dumps({name: type_document(Type(name, p, None)) for name, p in types.items()}),
        "Period": str(period),
        "Slots": str(SLOTS),
        "OutageAllowance": str(LOG_REACHES_BACK),
    }
    with Stack(parameters, start=float(begin * period), seed=seed, name="audit") as stack:
        client = Client(stack.request)
        delay = float(stack.template.parameters["PublishDelay"])
        pepper = Secret.derived("set-pepper", stack.storage.secrets["SetPepper"])
        firsts = {place: first_step_of(types[place[0]], set_key(pepper, *place)) for place in scenarios}
        log: dict[int, list[tuple[Place, int]]] = defaultdict(list)
        for place, scenario in scenarios.items():
            for r, clients in enumerate(scenario.joined):
                log[firsts[place] + r] += [(place, number) for number in clients]
        answers: dict[Place, dict[int, bool]] = {place: {} for place in scenarios}
        longest = max(len(scenario.joined) for scenario in scenarios.values())
        for step in range(begin, begin + window + longest):
            client.join_all(Join(*_sent(place), f"c{number}") for place, number in log.pop(step, []))
            stack.advance_to((step + 1) * period + delay)
            running = [place for place in scenarios if 0 <= step - firsts[place] < len(scenarios[place].joined)]
            true = _true(client, running, step)
            for place in running:
                answers[place][step - firsts[place]] = place in true
        return answers


def _true(client: Client, places: Sequence[Place], step: int) -> set[Place]:
    """The sets that are k-anonymous at ``step``, the current one."""
    sent = {_sent(place): place for place in places}
    answers = client.batch_query(sent)
    if places and answers.step != step:
        raise LateError(f"answers are of step {answers.step} and not of {step}: evaluation is late")
    return {sent[place] for place in answers.k_anonymous}


def _sent(place: Place) -> tuple[str, str]:
    """The type and the set id in the encoding of the API."""
    return place[0], encoded(place[1])


def _twins(name: str) -> tuple[str, str]:
    """Two types with the same parameters; their noise must still differ."""
    return f"audit-{name}-a", f"audit-{name}-b"


def _crossings(observed: Sequence[Mapping[int, bool]], window: int) -> Ints:
    """The step at which each set turned true in each of two instances, (sets, 2); the window if it did not."""
    table = np.array([[[of_set[q * window + i] for i in range(window)] for q in (0, 1)] for of_set in observed])
    return np.where(table.any(axis=2), table.argmax(axis=2), window)


def _latched(of_set: Mapping[int, bool], window: int) -> bool:
    return not any(of_set[r] and not of_set[r + 1] for r in range(2 * window - 1) if (r + 1) % window)
