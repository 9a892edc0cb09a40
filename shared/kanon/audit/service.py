"""The audit of the whole service: joins over HTTP, evaluation by schedule and queue, answers over HTTP.

It runs on the local stack (``kanon.local``, built from template.yaml) with its own types and changes nothing inside
the service. It reads the set pepper, because each scenario begins at the first step of an instance of its set, or, with
restart after the crossing, near the end of an epoch. It reads the noise keys too, of which the second one begins amid
the scenarios: with them the definition, ``above_threshold``, gives the only right answer of each set at each step.
"""

import itertools
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256
from typing import Any

from kanon.audit.goodness import Ints
from kanon.audit.mechanism import Check, Fit, Subject, answers_in_process, first_two, fits, judge_probe
from kanon.audit.scenarios import (
    CROWD,
    FIRST_STEP,
    SOON,
    Scenario,
    first_step_of,
    key_change,
    phase,
    probed,
    probes,
    scenario_of,
)
from kanon.client import Client, Join, encoded
from kanon.errors import Error
from kanon.gate.deciding import NoiseKeys
from kanon.gate.mechanism.above_threshold import SetState, evaluate, is_above
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.tape import Noise, Tapes
from kanon.gate.names import set_key
from kanon.gate.types import Type
from kanon.keys import Secret, fetch_noise_keys
from kanon.local import Stack
from kanon.plan.planner import type_document

TypeAndId = tuple[str, bytes]
"""Type name and set id."""

SLOTS = 2
DEFINED = 20
"""The sets of each type that are compared with the definition, which is slow."""
SECOND_KEY = "k" * 64
LOG_REACHES_BACK = 172_800
"""Seconds; the smallest value that the template allows, because the first evaluation reads all of it."""


def audit_service(types: Mapping[str, Parameters], trials: int, seed: int) -> tuple[list[Fit], list[Check]]:
    """The crossing steps of ``trials`` sets of each type, and the probes, as clients see them.

    All types have the same period. Client tokens have 32 bits, because two clients that share a token count as one.
    Types of different windows or restarts are audited in services of their own: one service has room for few types.

    Raises:
        ApiError: the service answered a request with an error.
        LateError: an evaluation was late.
    """
    found, checks = [], []
    for alike in groups(types):
        of_alike = _audit_alike(alike, trials, seed)
        found += of_alike[0]
        checks += of_alike[1]
    return found, checks


def groups(types: Mapping[str, Parameters]) -> list[dict[str, Parameters]]:
    """The types by window and restart: those that one service is audited with."""
    found: dict[Any, dict[str, Parameters]] = {}
    for name, parameters in types.items():
        found.setdefault((parameters.window, parameters.restart), {})[name] = parameters
    return list(found.values())


def _audit_alike(types: Mapping[str, Parameters], trials: int, seed: int) -> tuple[list[Fit], list[Check]]:
    """The audit of types with the same window and restart."""
    configured: dict[str, Parameters] = {}
    scenarios: dict[str, list[Scenario]] = {}
    for name, parameters in types.items():
        for twin in _twins(name):
            configured[twin] = replace(parameters, client_bits=32)
            scenarios[twin] = [scenario_of(parameters)] * (trials // 2)
    like = next(iter(types.values()))
    probed_types = {f"audit-probe-{rule}": parameters for rule, parameters in probed(like).items()}
    for name, parameters in probed_types.items():
        configured[name] = parameters
        scenarios[name] = [probe.scenario for probe in probes(parameters)]
    second = min(key_change(parameters) for parameters in types.values())
    with _stack(configured, seed, second) as stack:
        keys = _noise_keys(stack, second)
        answers = answers_of_service(stack, configured, scenarios, seed)
        standing = [_standing(stack, name, p) for name, p in probed_types.items() if p.restart is not None]
        defined = [
            _as_defined(stack, keys, twin, configured[twin], scenario_of(parameters), answers[twin][:DEFINED], seed)
            for name, parameters in types.items()
            for twin in _twins(name)
        ]
    found, checks = [], standing + defined
    for name, parameters in types.items():
        twins = [answers[twin] for twin in _twins(name)]
        found += fits(
            name, "service", parameters, scenario_of(parameters), [_crossings(parameters, of) for of in twins]
        )
        observed = [of_set for of in twins for of_set in of]
        unstable = sum(not _latched(parameters, of_set) for of_set in observed)
        detail = f"{unstable} sets turned false before their status ended" if unstable else ""
        checks.append(Check("true stays true", name, "service", len(observed), not unstable, detail))
    for name, parameters in probed_types.items():
        rule = name.rpartition("-")[2]
        for probe, of_set in zip(probes(parameters), answers[name], strict=True):
            checks.append(judge_probe(probe, rule, "service", [of_set]))
    return found, checks


class LateError(Error, RuntimeError):
    """The answers are not those of the current step, so the audit cannot judge them."""


def _stack(types: Mapping[str, Parameters], seed: int, second_key: int) -> Stack:
    (period,) = {parameters.period for parameters in types.values()}
    parameters = {
        "Types": json.dumps(
            {name: type_document(Type(name, p, None)) for name, p in types.items()}, separators=(",", ":")
        ),
        "Period": str(period),
        "Slots": str(SLOTS),
        "NoiseKeys": json.dumps([{"id": "1", "from_step": 0}, {"id": "2", "from_step": second_key}]),
        "OutageAllowance": str(LOG_REACHES_BACK),
    }
    return Stack(parameters, start=float(FIRST_STEP * period), seed=seed, name="audit")


def _noise_keys(stack: Stack, second_key: int) -> NoiseKeys:
    """The noise keys of a new stack, after the second one, from this step on, was added to its secret."""
    manager = stack.session.client("secretsmanager")
    arn = stack.functions["evaluate"].environment["KANON_NOISE_KEY_SECRET"]
    texts = {**json.loads(stack.storage.secrets["NoiseKey"]), "2": SECOND_KEY}
    manager.put_secret_value(SecretId=arn, SecretString=json.dumps(texts))
    keys = fetch_noise_keys(manager, arn, ["1", "2"])
    return NoiseKeys(((0, keys["1"]), (second_key, keys["2"])))


def _as_defined(
    stack: Stack,
    keys: NoiseKeys,
    name: str,
    parameters: Parameters,
    scenario: Scenario,
    answers: Sequence[Mapping[int, bool]],
    seed: int,
) -> Check:
    """Compare the answers of the first sets of a type with the definition, under the same noise keys."""
    pepper = Secret.derived("set-pepper", stack.storage.secrets["SetPepper"])
    sets = [set_key(pepper, *pair) for pair in _sets(name, parameters, pepper, len(answers), seed)]
    deployment = stack.functions["evaluate"].environment["KANON_DEPLOYMENT"]
    expected = answers_in_process(_definition(parameters, keys, deployment, name), dict.fromkeys(sets, scenario))
    wrong = sum(expected[key] != of_set for key, of_set in zip(sets, answers, strict=True))
    detail = f"the answers of {wrong} sets differ" if wrong else ""
    return Check("the definition under the same noise keys", name, "service", len(sets), not wrong, detail)


def _definition(parameters: Parameters, keys: NoiseKeys, deployment: str, name: str) -> Subject:
    """The definition with the noise of a stack. Each search uses the noise key of its first step."""

    def noise_of(key: bytes, place: int) -> Noise:
        grid = parameters.restart is None
        first = phase(key, parameters.cycle, parameters.phase) + place * parameters.cycle if grid else place
        return Noise(Tapes(keys.for_search(first), deployment, name, parameters), key, place)

    def decide(step: int, sets: Sequence[tuple[bytes, Any, Sequence[int]]]) -> list[Any]:
        return [evaluate(parameters, key, state, joined, step, partial(noise_of, key)) for key, state, joined in sets]

    def answer(key: bytes, crossings: tuple[int, ...], visible: int, step: int) -> bool:
        return is_above(Searches.of(parameters, key), crossings, visible, step)

    return Subject(parameters, SetState(), decide, answer)


def answers_of_service(
    stack: Stack, types: Mapping[str, Parameters], scenarios: Mapping[str, Sequence[Scenario]], seed: int
) -> dict[str, list[dict[int, bool]]]:
    """The answer for each set of a type at each step of its scenario, counted from its first step."""
    client = Client(stack.request)
    delay = float(stack.template.parameters["PublishDelay"])
    pepper = Secret.derived("set-pepper", stack.storage.secrets["SetPepper"])
    pairs = {name: _sets(name, types[name], pepper, len(of_type), seed) for name, of_type in scenarios.items()}
    running: dict[TypeAndId, tuple[int, Scenario]] = {
        pair: (first_step_of(types[name], set_key(pepper, *pair)), scenario)
        for name, of_type in scenarios.items()
        for pair, scenario in zip(pairs[name], of_type, strict=True)
    }
    log: dict[int, list[tuple[TypeAndId, int]]] = defaultdict(list)
    for pair, (first, scenario) in running.items():
        for r, clients in enumerate(scenario.joined):
            log[first + r] += [(pair, number) for number in clients]
    (period,) = {parameters.period for parameters in types.values()}
    answers: dict[TypeAndId, dict[int, bool]] = {pair: {} for pair in running}
    last = max(first + len(scenario.joined) for first, scenario in running.values())
    for step in range(FIRST_STEP, last):
        client.join_many(Join(*_sent(pair), f"c{number}") for pair, number in log.pop(step, []))
        stack.advance_to((step + 1) * period + delay)
        asked = [pair for pair, (first, scenario) in running.items() if 0 <= step - first < len(scenario.joined)]
        true = _true(client, asked, step)
        for pair in asked:
            answers[pair][step - running[pair][0]] = pair in true
    return {name: [answers[pair] for pair in of_type] for name, of_type in pairs.items()}


def _sets(name: str, parameters: Parameters, pepper: Secret, count: int, seed: int) -> list[TypeAndId]:
    """Sets of a type; with restart after the crossing, those whose scenario begins soon."""
    found: list[TypeAndId] = []
    for n in itertools.count():
        if len(found) == count:
            return found
        set_id = sha256(f"audit {seed} set {n}".encode()).digest()
        begins = first_step_of(parameters, set_key(pepper, name, set_id)) - FIRST_STEP
        if parameters.restart is None or begins < SOON:
            found.append((name, set_id))
    raise AssertionError  # the count has no end


def _standing(stack: Stack, name: str, parameters: Parameters) -> Check:
    """A set turns true, then evaluation stands still: answers are those of the visible step, then there are none."""
    client, pair, period = Client(stack.request), (name, b"standing"), parameters.period
    delay, hold = float(stack.template.parameters["PublishDelay"]), parameters.restart.hold  # type: ignore[union-attr]
    wrong: list[str] = []
    step = int(stack.clock.now() // period) + 1
    client.join_many(Join(*_sent(pair), f"c{number}") for number in range(CROWD))
    stack.advance_to(step * period + delay)  # it is true from the step that has just ended on
    stack.advance_to((step + hold - 1) * period + delay)  # the last true step
    visible = step + hold - 2
    stale = parameters.stale_after(int(stack.template.parameters["MaxStale"])) or 0
    for late in range(stale):
        stack.clock.set((visible + 1 + late) * period + delay)
        if _true(client, [pair], visible) != {pair}:
            wrong.append(f"false {late} steps later")
    stack.clock.set((visible + 1 + stale) * period + delay)
    if stack.request("GET", f"/v1/types/{name}/sets/{_sent(pair)[1]}").status != 503:
        wrong.append("an answer that is too old")
    stack.advance(period)  # evaluation goes on
    return Check("an outage: answers of the visible step, then none", name, "service", 1, not wrong, ", ".join(wrong))


def _true(client: Client, pairs: Sequence[TypeAndId], step: int) -> set[TypeAndId]:
    """The sets that are k-anonymous at ``step``, the current one."""
    sent = {_sent(pair): pair for pair in pairs}
    answers = client.batch_query(sent)
    if pairs and answers.step != step:
        raise LateError(f"answers are of step {answers.step} and not of {step}: evaluation is late")
    return {sent[pair] for pair in answers.k_anonymous}


def _sent(pair: TypeAndId) -> tuple[str, str]:
    """The type and the set id in the encoding of the API."""
    return pair[0], encoded(pair[1])


def _twins(name: str) -> tuple[str, str]:
    """Two types with the same parameters; their noise must still differ."""
    return f"audit-{name}-a", f"audit-{name}-b"


def _crossings(parameters: Parameters, observed: Sequence[Mapping[int, bool]]) -> Ints:
    """The first two crossings of each set (:func:`first_two`), from its answers."""
    found = []
    for of_set in observed:
        crossings: list[int] = []
        for r in range(len(of_set)):
            if of_set[r] and (not crossings or r > _last_true(parameters, crossings[-1])):
                crossings.append(r)
        found.append(crossings)
    return first_two(parameters, found, len(observed[0]))


def _last_true(parameters: Parameters, crossing: int) -> int:
    """The last step of the status of a crossing; both are counted from the first step of a scenario."""
    if parameters.restart is not None:
        return crossing + parameters.restart.hold - 1
    return crossing // parameters.window * parameters.window + parameters.window - 1


def _latched(parameters: Parameters, of_set: Mapping[int, bool]) -> bool:
    """Whether a set is true from each crossing to the end of its status."""
    crossing = None
    for r in range(len(of_set)):
        if crossing is not None and r <= _last_true(parameters, crossing):
            if not of_set[r]:
                return False
        else:
            crossing = r if of_set[r] else None
    return True
