"""The simulator against a recount of every step: crossings, answers, delays, costs."""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import sha256

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kanon.cost.billing import bill, read_measured, read_prices
from kanon.cost.evaluating import written_units
from kanon.cost.month import usage
from kanon.cost.workload import Workload
from kanon.demo.replay import ExactCounts
from kanon.gate.mechanism.above_threshold import SetState, evaluate
from kanon.gate.mechanism.bounds import all_joins
from kanon.gate.mechanism.parameters import CrossingRestart, Parameters, profile
from kanon.gate.mechanism.searches import Searches
from kanon.gate.mechanism.tape import Noise, Tapes
from kanon.gate.names import client_token, set_key
from kanon.gate.types import Type
from kanon.joinlog import LogError, LoggedJoin
from kanon.joinlog.numbered import JoinBatch, Texts
from kanon.keys import Secret
from kanon.noise.laws import two_sided
from kanon.noise.words import length_prefixed
from kanon.simulate import part, run
from kanon.simulate.crossings import Crossings
from kanon.simulate.outcome import TypeOutcome, most_counted
from kanon.simulate.part import Macs, PartKeys
from kanon.simulate.presence import MemberJoins, runs_of
from kanon.simulate.rejoining import bounds_of, classes_of, costs_of, merged
from kanon.simulate.run import decide, gather, simulate
from kanon.simulate.table import Pricing, cost_of
from tests.naive import Naive
from tests.unit.examples import CROSSING, LONG_HOLD, ONE_SIDED, PUBLISHED, SMALL

KEYS = PartKeys.from_seed(7)
HIGH = replace(ONE_SIDED, period=3600, phase="hash")
TYPES = [
    Type("a", SMALL, None),
    Type("a", replace(SMALL, phase="zero", window=9), None),
    Type("b", HIGH, None),
    Type("c", replace(CROSSING, client_bits=16), None),
    Type("c", replace(LONG_HOLD, phase="zero"), None),
]


def numbered(texts: Sequence[str]) -> Texts:
    return Texts(np.arange(len(texts)), [text.encode() for text in texts])


def batches(joins: Iterable[LoggedJoin], size: int = 1000) -> list[JoinBatch]:
    joins = list(joins)
    return [
        JoinBatch(
            np.array([j.time for j in part], np.float64),
            numbered([j.set for j in part]),
            numbered([j.client for j in part]),
        )
        for part in (joins[at : at + size] for at in range(0, len(joins), size))
    ]


class Recount:
    """One type on a log, by the naive algorithm step by step."""

    def __init__(self, joins: list[LoggedJoin], type_: Type, keys: PartKeys = KEYS) -> None:
        p = type_.parameters
        self.tapes = Tapes(keys.noise_key, keys.deployment, type_.name, p)
        self.keys = {j.set: set_key(keys.pepper, type_.name, sha256(j.set.encode()).digest()) for j in joins}
        by_step: dict[int, list[LoggedJoin]] = defaultdict(list)
        for join in joins:
            by_step[int(join.time // 3600)].append(join)
        naive, exact = Naive(p, self.tapes), ExactCounts(p.window)
        self.searches = naive.searches
        self.statuses: dict[str, dict[int, tuple[bool, int]]] = defaultdict(dict)
        for step in range(min(by_step), max(by_step) + 1):
            for join in by_step[step]:
                token = client_token(
                    keys.client_key, self.keys[join.set], "client", join.client.encode(), p.client_bits
                )
                naive.join(self.keys[join.set], token, step)
            exact.step(step, by_step[step])
            for name in exact.counts:
                self.statuses[name][step] = naive.step(self.keys[name], step), exact.counts[name]
        self.by_step = by_step

    def expected(self, p: Parameters) -> dict[str, object]:
        answers = [answer for history in self.statuses.values() for answer in history.values()]
        delays, reached_sets, lost, lost_reached = [], 0, 0, 0
        for history in self.statuses.values():
            reached = [step for step, (_, count) in history.items() if count >= p.k]
            if reached:
                reached_sets += 1
                true = [step for step, (status, _) in history.items() if status and step >= reached[0]]
                delays += [true[0] - reached[0]] if true else []
            for step, (status, count) in history.items():
                if not status and history.get(step - 1, (False, 0))[0]:
                    lost, lost_reached = lost + 1, lost_reached + (count >= p.k)
        crossings = []
        for name, history in self.statuses.items():
            crossings += [history[step][1] for step in self.searches[self.keys[name]].crossings]
        joins = [(step, join) for step, some in self.by_step.items() for join in some]
        true_sets = {name for name, history in self.statuses.items() if any(s for s, _ in history.values())}
        cap = most_counted(p)
        by_count = Counter(min(count, cap) for status, count in answers if status)
        costly = {n for n, h in self.statuses.items() if any(count >= p.never_true_below for _, count in h.values())}
        of_client = Counter(client for _, client in {(j.set, j.client) for _, j in joins if j.set in costly})
        of_hash = {int.from_bytes(part.digest(c.encode())[:8], "big", signed=True): n for c, n in of_client.items()}
        return {
            "sets": len(self.statuses),
            "sets_true": len(true_sets),
            "joins": len(joins),
            "joins_of_true_sets": sum(join.set in true_sets for _, join in joins),
            "joins_at_true": sum(self.statuses[join.set][step][0] for step, join in joins),
            "answers": len(answers),
            "answers_true": sum(status for status, _ in answers),
            "answers_reached": sum(count >= p.k for _, count in answers),
            "answers_both": sum(status and count >= p.k for status, count in answers),
            "sets_reached": reached_sets,
            "delays": sorted(delays),
            "lost": lost,
            "lost_reached": lost_reached,
            "crossings": len(crossings),
            "crossings_reached": sum(count >= p.k for count in crossings),
            "touched": len({(step, join.set) for step, join in joins}),
            "true_by_count": [by_count[count] for count in range(cap + 1)],
            "costly_sets": len(costly),
            "costly": [sorted(of_hash), [of_hash[name] for name in sorted(of_hash)]],
        }


def found(outcome: TypeOutcome) -> dict[str, object]:
    plain = {name: getattr(outcome, name) for name in TypeOutcome.__dataclass_fields__}
    for name in ("true_changes", "reached_changes", "members_changes", "rejoining"):
        del plain[name]
    return {
        k: (sorted(v.tolist()) if k == "delays" else v.tolist()) if isinstance(v, np.ndarray) else v
        for k, v in plain.items()
    }


def random_log(seed: int, clients: int = 14, steps: int = 60, joins: int = 260) -> list[LoggedJoin]:
    """Five sets with clients who come back, and three that reach their count in the last step."""
    chance = random.Random(seed)
    log = [
        (chance.randrange(steps), f"s{int(5 * chance.random() ** 2)}", f"c{chance.randrange(clients)}")
        for _ in range(joins)
    ]
    log += [(steps - 1, f"late{number}", f"c{client}") for number in range(3) for client in range(4 + seed % 2)]
    return [LoggedJoin(3600.0 * (500_000 + step) + chance.random() * 3599, set_, client) for step, set_, client in log]


@pytest.mark.parametrize("seed", range(12))
def test_every_figure_equals_a_recount_of_every_step(seed: int) -> None:
    joins = random_log(seed, clients=[6, 14, 40][seed % 3])
    result = simulate(batches(joins), TYPES, KEYS, 3600)
    for type_, outcome in zip(result.types, result.outcomes, strict=True):
        recount = Recount(joins, type_)
        assert found(outcome) == recount.expected(type_.parameters)
        _check_timelines(outcome, recount, type_.parameters, result.steps)


def _check_timelines(outcome: TypeOutcome, recount: Recount, p: Parameters, steps: range) -> None:
    histories = recount.statuses.values()
    everything = [[history.get(step, (False, 0)) for history in histories] for step in steps]
    assert np.cumsum(outcome.true_changes).tolist() == [sum(s for s, _ in row) for row in everything]
    assert np.cumsum(outcome.reached_changes).tolist() == [sum(c >= p.k for _, c in row) for row in everything]
    kept = [sum(min(c, p.members_kept) for _, c in row) for row in everything]
    assert np.cumsum(outcome.members_changes).tolist() == kept
    assert outcome.most_members == max(kept)


def test_the_compared_figures_are_not_zero() -> None:
    logs = [random_log(seed, clients=[6, 14, 40][seed % 3]) for seed in range(12)]
    outcomes = [each for log in logs for each in simulate(batches(log), TYPES, KEYS, 3600).outcomes]
    for name in ("crossings", "lost_reached", "never"):
        assert any(getattr(outcome, name) for outcome in outcomes)
    assert any(outcome.crossings_reached < outcome.crossings for outcome in outcomes)
    assert any(max(outcome.delays) > 0 for outcome in outcomes)
    assert any(0 < o.answers_both < min(o.answers_true, o.answers_reached) for o in outcomes)


def test_sets_that_the_definition_evaluates_only_when_touched_cross_at_the_same_steps() -> None:
    """The service evaluates a set when it is joined or woken; the simulator looks at whole instances."""
    joins = random_log(5)
    crossings = 0
    for type_ in TYPES:
        recount = Recount(joins, type_)
        for name, history in recount.statuses.items():
            key, p = recount.keys[name], type_.parameters
            state, crossed = SetState(), set()
            for step in history:
                tokens = [
                    client_token(KEYS.client_key, key, "client", j.client.encode(), p.client_bits)
                    for j in recount.by_step[step]
                    if j.set == name
                ]
                if tokens or state.wake_up == step:
                    state = evaluate(p, key, state, tokens, step, partial(Noise, recount.tapes, key))
                    crossed |= {x for x in state.crossings if x == step}
            crossings += len(crossed)
            searches = Searches.of(p, key)
            expected = {step for x in crossed for step in range(x, searches.last_true(x) + 1) if step in history}
            assert expected == {step for step, (status, _) in history.items() if status}
    assert crossings > 0


@pytest.mark.slow
@pytest.mark.parametrize("rows", [1, 100])
def test_a_log_that_is_spilled_gives_the_same_result(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    joins = random_log(3) + [join._replace(set=f"t{n % 50}") for n, join in enumerate(random_log(4))]
    whole = simulate(batches(joins), TYPES, KEYS, 3600)
    monkeypatch.setattr(run, "ROWS_IN_MEMORY", rows)
    monkeypatch.setattr(run, "PARTS", 4)
    said: list[int] = []
    with gather(batches(joins, 50), 3600) as log:
        spilled = decide(log, TYPES, KEYS, advance=said.append)
    assert spilled.steps == whole.steps
    assert list(map(found, spilled.outcomes)) == list(map(found, whole.outcomes))
    assert [o.rejoining for o in spilled.outcomes] == [o.rejoining for o in whole.outcomes]
    assert said == [1] * 4


def test_a_spilled_log_of_fewer_sets_than_parts_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    joins = [join._replace(set="one") for join in random_log(3)]
    whole = simulate(batches(joins), TYPES, KEYS, 3600)
    monkeypatch.setattr(run, "ROWS_IN_MEMORY", 100)
    spilled = simulate(batches(joins, 50), TYPES, KEYS, 3600)
    assert list(map(found, spilled.outcomes)) == list(map(found, whole.outcomes))


def test_another_seed_gives_other_noise_and_the_same_seed_the_same() -> None:
    joins = [join for seed in range(4) for join in random_log(seed)]
    first, again, other = (
        simulate(batches(joins), TYPES[:1], PartKeys.from_seed(seed), 3600).outcomes[0] for seed in (1, 1, 2)
    )
    assert found(first) == found(again)
    assert found(first) != found(other)


@pytest.mark.parametrize("clients", [30, 60, 300])
@pytest.mark.parametrize("seed", range(3))
def test_tokens_that_clients_share_are_counted_once(clients: int, seed: int) -> None:
    """Up to 300 clients have at most 256 tokens; 22 tokens cross with any noise."""
    law = two_sided(SMALL.query_law.epsilon, 2)
    types = [Type(f"a{seed}", Parameters(20, window, 3600, law, law, 8), None) for window in (6, 40)]
    chance = random.Random(seed)
    joins = [
        LoggedJoin(3600.0 * (500_000 + chance.randrange(40) ** 2 // 40), f"s{n % 2}", f"c{chance.randrange(clients)}")
        for n in range(20 + 5 * clients)
    ]
    for type_, outcome in zip(types, simulate(batches(joins), types, KEYS, 3600).outcomes, strict=True):
        assert found(outcome) == Recount(joins, type_).expected(type_.parameters)


@pytest.mark.parametrize("seed", range(20))
def test_clients_are_present_in_a_crossing_if_they_joined_in_the_steps_that_count(seed: int) -> None:
    chance, window = random.Random(seed), 4
    joins = [(chance.randrange(12), f"s{chance.randrange(3)}", f"c{chance.randrange(5)}") for _ in range(40)]
    steps, sets, clients = zip(*joins, strict=True)
    made = part.LogPart.of(np.array(steps), numbered(sets), numbered(clients))
    begins = np.array(sorted(chance.sample(range(12), 3)) * len(made.sets))
    sinces = begins - np.array([chance.randrange(window) for _ in begins])
    crossings = Crossings(np.repeat(np.arange(len(made.sets)), 3), begins, begins + window)
    owners, pairs = part._present(made, crossings, sinces)
    found = [
        (owner, made.sets[made.set_of[pair]].decode(), made.clients[made.client_of[pair]].decode())
        for owner, pair in zip(owners.tolist(), pairs.tolist(), strict=True)
    ]
    expected = {
        (owner, name, client)
        for owner, begin in enumerate(begins.tolist())
        for step, name, client in joins
        if name == made.sets[owner // 3].decode() and sinces[owner] <= step <= begin
    }
    assert sorted(found) == sorted(expected)


def test_a_set_of_the_fewest_clients_that_can_cross_crosses() -> None:
    law = two_sided(SMALL.query_law.epsilon, 2)
    type_ = Type("a", Parameters(7, 6, 3600, law, law, 8), None)
    least = type_.parameters.never_true_below
    joins = [LoggedJoin(3600.0 * (500_000 + n % 5), f"s{n}", f"c{c}") for n in range(120) for c in range(least)]
    outcome = simulate(batches(joins), [type_], KEYS, 3600).outcomes[0]
    assert found(outcome) == Recount(joins, type_).expected(type_.parameters)
    assert outcome.sets_true > 0


def test_an_empty_log_and_a_log_of_centuries_are_refused() -> None:
    with pytest.raises(LogError, match="holds no join"):
        simulate([], TYPES, KEYS, 3600)
    joins = [LoggedJoin(0.0, "s", "c"), LoggedJoin(5e9, "s", "c")]
    with pytest.raises(LogError, match="from 1970-01-01 to 2128-06-11: check these times, or give a longer --period"):
        simulate(batches(joins), TYPES, KEYS, 3600)


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(
    joined=st.dictionaries(st.integers(0, 5), st.sets(st.integers(-60, 60), min_size=1, max_size=12), max_size=5),
    phases=st.lists(st.integers(0, 10), min_size=3, max_size=3),
    window=st.integers(2, 11),
    restart=st.none() | st.tuples(st.integers(0, 5), st.integers(1, 20)),
)
def test_the_cost_of_a_client_is_the_bound_for_all_its_joins(
    joined: dict[int, set[int]], phases: list[int], window: int, restart: tuple[int, int] | None
) -> None:
    """Members 0 and 1 are of set 0, and so on. A restart has so much more hold and epoch than a window."""
    longer = None if restart is None else CrossingRestart(window + restart[0], window + restart[1])
    parameters = replace(SMALL, window=window, restart=longer)
    rows = np.array([(member, step) for member, steps in joined.items() for step in steps], np.int64).reshape(-1, 2)
    runs = runs_of(MemberJoins.of(np.arange(6) // 2, rows[:, 0], rows[:, 1]), window)
    costs = costs_of(runs, np.array([p % window for p in phases]), parameters)
    expected = {m: all_joins(parameters, steps, phases[m // 2] % window) for m, steps in joined.items()}
    assert costs.members.tolist() == sorted(joined)
    for row, member in enumerate(costs.members.tolist()):
        one = replace(costs, **{name: getattr(costs, name)[row : row + 1] for name in costs.__dataclass_fields__})
        assert [(1, expected[member])] == bounds_of(parameters, classes_of(one))
    together = bounds_of(parameters, classes_of(costs))
    assert sum(clients for clients, _ in together) == len(joined)
    for _, bound in expected.items() and [(0, b) for b in expected.values()]:
        assert any(b.epsilon == bound.epsilon and b.delta >= bound.delta for _, b in together)


def test_classes_add_up() -> None:
    a, b = {(1, 0): (2, 1, 3, 4)}, {(1, 0): (1, 2, 5, 1), (2, 1): (7, 6, 8, 9)}
    assert merged([a, b]) == {(1, 0): (3, 2, 5, 4), (2, 1): (7, 6, 8, 9)}
    assert (
        classes_of(costs_of(runs_of(MemberJoins.of(*[np.zeros(0, np.int64)] * 3), 6), np.zeros(0, np.int64), SMALL))
        == {}
    )


@pytest.mark.parametrize(("clients", "true"), [(120, 1), (3, 0)])
def test_the_published_type_is_simulated(clients: int, true: int) -> None:
    joins = [LoggedJoin(1.7e9 + 100 * n, "s", f"c{n}") for n in range(clients)]
    outcome = simulate(batches(joins), [Type("fledge", PUBLISHED, "published")], KEYS, 3600).outcomes[0]
    assert outcome.sets_true == true


def test_a_bill_equals_the_bill_of_kanon_cost_for_the_counted_units() -> None:
    joins = random_log(1)
    type_ = Type("fledge", PUBLISHED, "published")
    result = simulate(batches(joins), [type_], KEYS, 3600)
    pricing = Pricing(read_prices(), read_measured(), batch=10)
    cost = cost_of(PUBLISHED, result.outcomes[0], result.steps, pricing)
    outcome, passed = result.outcomes[0], len(result.steps)
    load = Workload(
        PUBLISHED, len(joins) / passed / 3600, 10, sets=outcome.sets,
        touched=outcome.touched / passed, crossed=outcome.crossings / passed,
    )  # fmt: skip
    assert cost.workload == replace(load, joins=cost.workload.joins)
    assert cost.workload.joins == pytest.approx(load.joins)
    assert cost.written == pytest.approx(passed * written_units(load, pricing.measured, passed))
    dollars = {line.name: line.dollars for line in cost.month.lines}
    assert dollars["dynamodb.write"] == pytest.approx(
        written_units(load, pricing.measured) * 730 * pricing.prices.by_name["dynamodb.write"].usd / 1e6
    )
    modelled = bill(usage(cost.workload, pricing.measured), pricing.prices)
    same_joins = {line.name: line.dollars for line in modelled.lines}
    assert dollars["apigateway.http"] == same_joins["apigateway.http"] > 0


def test_only_clients_in_the_step_of_a_crossing_are_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    parameters = Parameters(50, 168, 3600, *profile("sharp", 168))
    type_ = Type("a", parameters, None)
    sure = parameters.surely_true_from
    sizes = {"few": parameters.never_true_below - 1, "sure": sure, "large": 3 * sure}
    joins = [LoggedJoin(3600.0 * 500_000, s, f"c{n}") for s, clients in sizes.items() for n in range(clients)]
    later = [LoggedJoin(3600.0 * 500_001, "sure", f"later{n}") for n in range(100)]
    hashed: list[int] = []
    tokens = part.KeysAndTokens._hash
    monkeypatch.setattr(
        part.KeysAndTokens, "_hash", lambda self, pairs: hashed.append(len(pairs)) or tokens(self, pairs)
    )
    joins += later
    assert found(simulate(batches(joins), [type_], KEYS, 3600).outcomes[0]) == Recount(joins, type_).expected(
        parameters
    )
    assert sum(hashed) == sure + sure + part._SPARE


@pytest.mark.parametrize("parts", [(), (b"id",), (bytes(70), b"client")])
def test_a_mac_whose_first_parts_are_hashed_once_is_the_same_mac(parts: tuple[bytes, ...]) -> None:
    secret = Secret.derived("set-pepper", "a" * 64)
    mac = Macs(secret).of(*parts)
    for more in (b"", b"a", bytes(100)):
        assert mac(length_prefixed(more)) == secret.mac(*parts, more)
