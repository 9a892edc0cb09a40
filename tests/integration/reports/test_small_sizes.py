"""Jobs with every size constant lowered: what runs in pieces runs in many of them, and all sums stay exact.

No input of a test reaches the real sizes, so the code for a second piece would never run.
"""

import ast
import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import cbor2
import pytest

from kanon.local.source import ROOT
from kanon.reports.avro import Report
from kanon.reports.payload import seal
from kanon.reports.storage.report_jobs import PIECES, STAGES, ReportJobs
from tests.integration.gate.tables import Running
from tests.integration.reports.aggregation import WORK, aggregation
from tests.unit.reports import made

SMALL = {
    "dynamo.batches": {"KEYS_A_CALL": 2},
    "reports.aggregate": {"IN_MEMORY": 100},
    "reports.avro": {"_ROWS": 2, "_BLOCK": 40},
    "reports.histogram": {"KEYS_A_PARTITION": 3, "ROWS_AT_A_TIME": 2, "SLOTS_A_PARTITION": 100},
    "reports.mapping": {"BATCH": 4, "_PAIRS": 3, "_LAYOUTS": 2},
    "reports.noise": {"_PIECE": 1},
    "reports.service.shards": {"PIECE_BYTES": 1_500, "SHARD_BYTES": 8_000},  # two objects a shard
    "reports.storage.budgets": {"ROWS_A_CHUNK": 1},
    "reports.storage.objects": {"DELETES_A_CALL": 2},
}
"""Sizes of pieces."""
LIMITS = {
    "dynamo.batches": {"ATTEMPTS", "ATTEMPTS_OF_THE_CLIENT"},
    "dynamo.limits": {"MOST_ITEM_BYTES", "MOST_EXPRESSION_BYTES"},
    "dynamo.transactions": {"MOST_ITEMS"},
    "reports.avro": {"FEW_ROWS", "LEAST_REPORT", "MOST_BLOCK", "MOST_FIELDS", "MOST_KEYS", "MOST_RATIO"},
    "reports.collecting": {"MOST_INFO", "MOST_PAYLOAD", "LEAST_PAYLOAD"},
    "reports.histogram": {"LARGEST_SUM"},
    "reports.job": {"EPSILON_CAP", "MOST_KEYS"},
    "reports.payload": {"MOST_BYTES", "MOST_PUBLIC_KEYS", "MOST_SLOTS", "MOST_UNUSUAL"},
    "reports.shared_info": {"CONTRIBUTION_BOUND"},
    "reports.service.shards": {"MOST_KEY_BYTES", "MOST_OBJECTS", "MOST_OBJECT_BYTES", "MOST_SHARDS"},
    "reports.service.answers": {"MOST_BYTES", "MOST_NAMED", "MOST_OBJECTS", "MOST_REPORTS", "MOST_UNITS"},
    "reports.service.bodies": {"MOST_DESTINATIONS", "MOST_FILTERING_IDS", "MOST_PREFIXES", "_PREFIX_BYTES"},
    "reports.service.rotation": {"MOST_STEPS"},
    "reports.storage.budgets": {"ATTEMPTS", "MOST_EXHAUSTED", "MOST_ROWS"},
    "reports.storage.disk": {"MOST_NAME_BYTES"},
}
"""What is beyond is refused, or left out of an answer that says so."""
OTHERS = {
    "dynamo.batches": {"WRITES_A_CALL"},  # reports put no batches
    "dynamo.units": {"READ_UNIT", "WRITE_UNIT"},
    "reports.job": {"DELTA_STEPS", "EPSILON_STEPS", "RECOMMENDED", "SAMPLER_BITS"},
    "reports.service.shards": {"KEY_BYTES"},
    "reports.histogram": {"RUNS", "SLOT_BYTES"},  # RUNS: one for each hexadecimal digit
    "reports.noise": {"PRECISION", "TIE_BITS"},
    "reports.storage.disk": {"MOST_CHARACTERS"},  # a batch is one object
    "reports.storage.objects": {"BUCKETS"},
    "reports.payload": {"BUCKET_BYTES", "ID_BYTES", "OVERHEAD", "VALUE_BYTES", "_TEXT"},
    "reports.service.one_machine": {"A_BATCH", "REPORTS_KEPT", "WORK_KEPT"},  # a batch is one object
    "reports.service.job_routes": {"SECRET_BYTES"},
    "reports.service.storing": {"PARALLEL"},  # threads
    "reports.shared_info": {"DAY", "END_OF_TIME", "HOUR", "MAX_AGE", "MAX_AHEAD"},
    "reports.storage.budgets": {"ONE_JOB", "REPORT_AGE", "SLACK", "WITNESS_KEPT"},
    "reports.storage.key_ring": {"NEW_EVERY", "ONE_JOB", "OPENS", "PUBLISHED", "READ_EVERY", "SETTLES"},
    "reports.storage.report_jobs": {"KEPT", "SECONDS_TO_COMMIT", "STAGED_KEPT", "STUCK", "WORK_KEPT"},
    "reports.storage.work": {"BLIND_BYTES"},
}
"""Times, units and formats."""


def constants(path: Path) -> Iterator[str]:
    """The names of a module's integers."""
    for statement in ast.parse(path.read_text()).body:
        for target in statement.targets if isinstance(statement, ast.Assign) else ():
            for name in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(name, ast.Name):
                    yield name.id


def test_every_size_is_in_one_of_the_lists() -> None:
    found: dict[str, set[str]] = {}
    package = ROOT / "shared" / "kanon"
    for path in sorted([*(package / "dynamo").glob("*.py"), *(package / "reports").rglob("*.py")]):
        name = ".".join(path.relative_to(package).with_suffix("").parts)
        if ".clients" in name:  # clients make one report at a time
            continue
        module = importlib.import_module(f"kanon.{name.removesuffix('.__init__')}")
        if numbers := {one for one in constants(path) if type(getattr(module, one)) is int}:
            found[name] = numbers
    listed: dict[str, set[str]] = {}
    for lists in ({name: set(sizes) for name, sizes in SMALL.items()}, LIMITS, OTHERS):
        for name, numbers in lists.items():
            assert not listed.setdefault(name, set()) & numbers
            listed[name] |= numbers
    assert listed == found, "put a new size of pieces into SMALL, so that a test runs more than one piece"


@pytest.fixture
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the sizes, in every module that imports them."""
    for name, sizes in SMALL.items():
        importlib.import_module(f"kanon.{name}")
        for constant, small in sizes.items():
            real = getattr(sys.modules[f"kanon.{name}"], constant)
            for module in [found for path, found in sys.modules.items() if path.startswith("kanon.")]:
                if getattr(module, constant, None) == real:
                    monkeypatch.setattr(module, constant, small)


ORDERS = list(permutations(("id", "value", "bucket")))
"""Six layouts of one length."""


def in_layout(number: int, pairs: list[tuple[int, int]], order: tuple[str, ...], **changes: Any) -> Report:
    """A report whose pairs have their fields in this order."""
    fields = [
        {"id": b"\0", "value": value.to_bytes(4, "big"), "bucket": made.key16(key)}
        for key, value in [*pairs, *[(0, 0)] * (4 - len(pairs))]
    ]
    data = [{name: each[name] for name in order} for each in fields]
    cleartext = cbor2.dumps({"data": data, "operation": "histogram"})
    text = made.info(number, **changes).text()
    return Report(seal(cleartext, made.KEY.public_key(), text), made.KEY_ID, text)


def many() -> tuple[list[Report], Counter[int]]:
    """Reports of six layouts and three destinations, of which some come twice, and their sums."""
    reports, sums = [], Counter[int]()
    for number in range(24):
        pairs = [(number % 7 + 1, 30_000), (number % 5 + 3, 30_000)]
        destination = f"https://shop{number % 3}.test"
        reports.append(in_layout(number, pairs, ORDERS[number % 6], attribution_destination=destination))
        for key, value in pairs:
            sums[key] += value
    return [*reports, *reports[:5]], sums


@pytest.mark.usefixtures("_small")
@pytest.mark.parametrize("domain", [None, range(1, 11)], ids=["discover", "declared"])
def test_a_local_job_in_many_pieces_has_exact_sums(tmp_path: Path, domain: range | None) -> None:
    reports, sums = many()
    outcome = made.run(tmp_path, reports[:10], reports[10:20], reports[20:], domain=domain)
    assert len(outcome.partitions) > 2
    assert (outcome.accepted, outcome.duplicates) == (24, 5)
    assert made.sums(outcome) == ({key: sums[key] for key in domain} if domain else sums)


@pytest.mark.usefixtures("_small")
def test_a_job_of_the_service_in_many_pieces_releases_spends_and_deletes(
    engine: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    service, (reports, sums) = aggregation(engine), many()
    for number in range(6):
        service.put_reports(f"in/{number}.avro", reports[5 * number : 5 * number + 5])
    service.put_domain("domain/keys.avro", *range(1, 11))
    recorded, record = Counter[str](), ReportJobs.record

    def counted(self: ReportJobs, job: str, stage: str, *rest: Any) -> Any:
        recorded[stage] += 1
        return record(self, job, stage, *rest)

    monkeypatch.setattr(ReportJobs, "record", counted)
    service.create("job", job_parameters__debug_privacy_epsilon="64")
    service.run()
    assert service.code("job") == "SUCCESS"
    assert recorded["map"] == 3
    assert all(recorded[f"{PIECES}#map#{shard:06}"] > 1 for shard in range(2))
    names = service.names("summaries")[1:]
    released = {key: metric for name in names for key, metric in service.summary(name).items()}
    assert len(names) > 2
    # The noise of a key has a standard deviation of 1,448. Sums are multiples of 30,000.
    exact = {key: round(metric / 30_000) * 30_000 for key, metric in released.items()}
    assert exact == {key: sums[key] for key in range(1, 11)}
    assert service.names(WORK) == []
    jobs, budgets = service.tables.jobs, service.tables.budgets
    assert [jobs.recorded("job", stage) for stage in (*STAGES.values(), PIECES)] == [{}] * 4
    assert list(jobs.unfinished()) == []
    assert Counter(job for _, job in budgets.holders()) == {"job": 3}
    assert service.row("job").values["counters"]["rows"] == 3
