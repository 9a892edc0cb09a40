"""Clients and aggregation together equal Algorithms 6 and 8 of the paper, the noise being an argument.

Events go through the clients, encryption, mapping and release; the oracle does all in one plain function. No
sparsity bound, threshold ``sharp``, one pair a report; budgets are kept by the units that the service charges.
"""

from collections import defaultdict
from fractions import Fraction
from random import Random
from uuid import UUID

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from kanon.reports.avro import listed
from kanon.reports.clients.devices import (
    Attribution,
    Device,
    KeyPiece,
    Source,
    Trigger,
    Windows,
    add_source,
    add_trigger,
    contribute,
)
from kanon.reports.clients.encrypt import encrypt
from kanon.reports.histogram import exact_sums
from kanon.reports.job import PrivacyParameters
from kanon.reports.mapping import Selection, map_reports
from kanon.reports.noise import Noised
from kanon.reports.payload import EncryptionKey, PayloadLayout
from kanon.reports.shared_info import Rules, units
from tests.oracles.reports import Query, algorithm_6, algorithm_8
from tests.unit.reports.made import by_bucket

BOUND, WINDOW, MINUTE, HOUR = 8, 600_000, 60_000, 3_600_000
ORIGIN = "https://report.test"
START = 1_767_225_600_000
MOST_EPSILON, MOST_DELTA = Fraction(2), Fraction(1, 500)
LAYOUT = PayloadLayout(slots=2)

PRIVATE = X25519PrivateKey.generate()
KEY_ID = "00000000-0000-4000-8000-000000000001"
PUBLIC = [EncryptionKey(KEY_ID, PRIVATE.public_key())]

KINDS = [
    ("discover", Fraction(1), Fraction(1, 1000)),
    ("discover", Fraction(1, 2), Fraction(1, 1000)),
    ("declared", Fraction(1), Fraction(0)),
    ("declared", Fraction(1, 2), Fraction(0)),
]
VALUES = [0, 1, 3, 4, 7, 8, 9]
WAITS = [0, 1, 5 * MINUTE, 10 * MINUTE, 35 * MINUTE]
HISTORIES = 120


def histories(seed, what):
    """Random histories of 40 steps: what is registered or happens, and questions about stretches of reports."""
    for number in range(HISTORIES):
        random = Random(f"{seed} {number}")
        yield [step(random, random.choices(what, k=1)[0]) for _ in range(40)]


def step(random, what):
    if what == "query":
        keys = tuple(random.sample(range(16), random.randrange(6)))
        return what, random.choice(KINDS), sorted(random.choices(range(25), k=2)), keys
    here = (what, random.choice(WAITS), random.choice("ab"))
    return here if what == "source" else (*here, random.randrange(16), random.choice(VALUES))


def parameters_of(mode, epsilon, delta):
    return PrivacyParameters(mode, epsilon, delta, contribution_bound=BOUND)


def noise(number, key):
    """Any function of query and key; values close to the threshold of discovery, where it matters."""
    mixed = (number + 1) * 7919 + key * 104_729
    return mixed % 17 + (46 if mixed % 2 else 85)


class System:
    """Clients' reports as the service gets them, and its filter by units of account."""

    def __init__(self):
        self.reports = []
        self.contents = []
        self.answers = []
        self.spent = defaultdict(lambda: (Fraction(0), Fraction(0)))

    def add(self, report):
        self.contents += [tuple(report.contributions[0][:2]) if report.contributions else None]
        report_id = UUID(int=len(self.reports) + 2**122)
        self.reports.append(encrypt(report, PUBLIC, LAYOUT, new_id=lambda: report_id))

    def ask(self, kind, stretch, keys):
        mode, epsilon, delta = kind
        parameters = parameters_of(mode, epsilon, delta)
        places = tuple(range(*(min(place, len(self.reports)) for place in stretch)))
        number = len(self.answers)
        self.answers.append(self._answer(parameters, places, keys, number))
        declared = keys if mode == "declared" else None
        return Query(places, epsilon, delta, declared, parameters.threshold or 0)

    def _answer(self, parameters, places, keys, number):
        rules = Rules(START // 1000 + 86_400, {KEY_ID: PRIVATE}, contribution_bound=BOUND)
        mapped = map_reports([self.reports[n] for n in places], rules, Selection())
        assert not mapped.errors
        if not self._spend(units(mapped.sources, [0]), parameters):
            return None
        domain = np.array([key.to_bytes(16, "big") for key in keys], "S16")
        exact = exact_sums(mapped.partitions, domain if parameters.mode == "declared" else None)
        drawn = np.array([noise(number, int.from_bytes(key, "big")) for key in listed(exact.keys)], np.int64)
        release = Noised(exact, drawn, parameters.threshold).release()
        return by_bucket((release.keys, release.metrics))

    def _spend(self, charged, parameters):
        after = {
            unit: (self.spent[unit][0] + parameters.epsilon, self.spent[unit][1] + parameters.delta) for unit in charged
        }
        if any(epsilon > MOST_EPSILON or delta > MOST_DELTA for epsilon, delta in after.values()):
            return False
        self.spent.update(after)
        return True


def test_the_noise_of_these_tests_makes_some_sums_pass_and_others_fail():
    drawn = {noise(number, key) for number in range(9) for key in range(16)}

    for epsilon in (Fraction(1), Fraction(1, 2)):
        tau = parameters_of("discover", epsilon, Fraction(1, 1000)).threshold
        assert {tau - 8, tau - 1, tau} <= drawn, "a sum of 8 just fails, sums of 1 just fail and just pass"


def test_attribution_and_aggregation_equal_algorithm_6():
    paper = Attribution(contribution_bound=BOUND)
    refused = 0
    for history in histories(6, ["source", "trigger", "trigger", "trigger", "query", "query"]):
        system, device, time, steps, charged = System(), (), START, [], []
        for what, *fields in history:
            if what == "query":
                steps.append(("query", system.ask(*fields)))
                continue
            wait, campaign, *pair = fields
            time += wait
            shop = f"https://{campaign}.test"
            steps.append((what, campaign, *pair))
            if what == "source":
                device = add_source(paper, device, Source(time, ORIGIN, frozenset({shop}), keys={"k": 0}))
                continue
            key, value = pair
            pieces, amounts = (KeyPiece(key, frozenset("k")),), {"k": value}
            device, report, _ = add_trigger(paper, device, Trigger(time, ORIGIN, shop, pieces, amounts), delay=0)
            system.add(report)
            charged.append((campaign, time // HOUR))
        reports, answers = algorithm_6(steps, BOUND, MOST_EPSILON, MOST_DELTA, noise, unit_of=charged.__getitem__)
        assert system.contents == [pair if pair[1] else None for pair in reports]
        assert system.answers == answers
        refused += answers.count(None)
    assert HISTORIES < refused < 10 * HISTORIES, "budgets must run out, and must not all the time"


def test_windows_and_aggregation_equal_algorithm_8():
    windows = Windows(ORIGIN, WINDOW, BOUND)
    refused = 0
    for history in histories(8, ["event", "event", "query"]):
        system, devices, time, steps, charged = System(), {}, START, [], []
        for what, *fields in history:
            if what == "query":
                steps.append(("query", system.ask(*fields)))
                continue
            wait, name, key, value = fields
            time += wait
            steps.append(("event", name, time, key, value))
            device = devices.get(name, Device(None))
            devices[name], report = contribute(windows, device, time, lambda memory, pair=(key, value): (memory, *pair))
            system.add(report)
            charged.append((time // WINDOW + 1) * WINDOW // HOUR)
        reports, answers = algorithm_8(
            steps, BOUND, WINDOW, MOST_EPSILON, MOST_DELTA, noise, unit_of=charged.__getitem__
        )
        assert system.contents == [pair if pair[1] else None for pair in reports]
        assert system.answers == answers
        refused += answers.count(None)
    assert HISTORIES < refused < 10 * HISTORIES, "budgets must run out, and must not all the time"
