"""Mode kanon of reports on AWS: a job's row names the list that is the newest on its receipt, and its plan reads it."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from hashlib import sha256
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from kanon.client.values import bucket_of
from kanon.gate.lists import ReadableList, join_bounds
from kanon.gate.mechanism.bounds import guarantee
from kanon.gate.types import read_types
from kanon.local import Stack
from kanon.noise.bound import Bound
from kanon.reports.avro import write_reports
from kanon.reports.job import MOST_KEYS
from kanon.reports.service.job_routes import KeyLists
from kanon.reports.service.stages import Stages
from kanon.reports.storage.report_jobs import ReleasedKeys, StageMessage, State
from kanon.serving.lists import Lister
from kanon.serving.released_keys import published_lists
from tests.e2e.gate.test_listing import TYPES as OF_THE_STACK
from tests.e2e.gate.test_listing import join
from tests.integration.gate.edge import event
from tests.integration.gate.tables import Running
from tests.integration.reports.aggregation import INPUT, OUTPUT, WORK, Aggregation, aggregation, body
from tests.integration.reports.functions import Functions
from tests.integration.reports.released import PERIOD, TYPES, Publishing
from tests.integration.reports.test_functions import collected, deployed_on
from tests.integration.serving.machine import KEYS, Machine, machine
from tests.integration.serving.reported import ON
from tests.integration.serving.test_released_keys import Deployment
from tests.unit.reports import made

VALUES = [f"term {number}" for number in range(9)]
STEP, HOUR = 490_000, 3600
KANON = {
    "output_domain": {"mode": "kanon", "type": "terms"},
    "job_parameters__output_domain_bucket_name": None,
    "job_parameters__output_domain_blob_prefix": None,
}


@dataclass
class Deployed:
    """The functions ``jobs``, ``decrypt`` and ``aggregate``, and the lists of a gate."""

    functions: Functions
    lists: Publishing

    def create(self, job: str, types: dict[str, Any] = TYPES, call: str = "createJob", **domain: Any) -> Any:
        """The answer of ``jobs`` in a deployment with these types."""
        functions = self.functions
        changes = {
            **KANON,
            "input_data_bucket_name": f"{functions.name}-reports",
            "output_data_bucket_name": f"{functions.name}-summaries",
            "output_domain": {"mode": "kanon", "type": "terms"} | domain,
        }
        path = {"createJob": "/v1alpha/createJob", "preflight": "/v1/jobs:preflight"}[call]
        started = functions.cold_start("jobs", LISTED_TYPES=json.dumps(types) if types else "")
        result = started.invoke(event("POST", path, json.dumps(body(job, **changes))))
        return result["statusCode"], json.loads(result["body"])

    def run(self, job: str, **changes: str) -> str:
        """The return code of a job after ``aggregate``, in this environment, has planned it."""
        self.functions.warm["aggregate"] = self.functions.cold_start(
            "aggregate", **{"LIST_BUCKET": self.bucket, **changes}
        )
        assert self.functions.run() == 0
        return self.functions.service.code(job)

    @property
    def bucket(self) -> str:
        return self.lists.objects.bucket

    def keys(self) -> set[int]:
        return set(self.functions.service.summary())

    def message(self, job: str) -> str:
        return str(self.functions.service.row(job).values["message"])

    def privacy(self, job: str) -> Any:
        result = self.functions.cold_start("jobs").invoke(event("GET", f"/v1alpha/getJob?job_request_id={job}"))
        return json.loads(result["body"])["privacy"]["released_keys"]

    def spends_nothing(self, job: str) -> None:
        """Check that a job has ended before its plan, and what it told."""
        assert "Nothing was spent" in self.message(job)
        assert "create a new job" in self.message(job)
        assert "plan" not in self.functions.service.row(job).values
        assert self.functions.service.names(OUTPUT) == []


@pytest.fixture
def deployed(engine: Running, monkeypatch: pytest.MonkeyPatch) -> Deployed:
    functions = deployed_on(engine, monkeypatch)
    bucket = f"{functions.name}-lists"
    functions.service.s3.create_bucket(Bucket=bucket)
    functions.schedule("rotate")
    collected(functions)
    return Deployed(functions, Publishing(engine.session, f"{functions.name}-Control", bucket))


def test_the_keys_are_the_values_of_the_newest_list_and_the_answer_names_it(deployed: Deployed) -> None:
    deployed.lists.publish(STEP - 1, VALUES[:3])
    deployed.lists.publish(STEP, VALUES)
    assert deployed.create("job") == (202, {})
    assert deployed.run("job") == "SUCCESS"
    assert deployed.keys() == set(map(bucket_of, VALUES))
    found = deployed.privacy("job")
    join = guarantee(read_types(json.dumps(TYPES), PERIOD)["terms"].parameters).watched
    assert (found["type"], found["keys"], found["step"]) == ("terms", 9, STEP)
    assert Fraction(found["sum_epsilon"]) == 10 + join.epsilon
    assert join.delta <= Fraction(found["sum_delta"]) <= join.delta * Fraction(1_000_011, 1_000_000)


def test_a_list_that_is_published_after_the_receipt_changes_nothing(deployed: Deployed) -> None:
    deployed.lists.publish(STEP, VALUES[:4])
    assert deployed.create("job")[0] == 202
    deployed.lists.publish(STEP + 1, VALUES[2:])
    assert deployed.create("job")[0] == 409
    assert deployed.run("job") == "SUCCESS"
    assert deployed.keys() == set(map(bucket_of, VALUES[:4]))
    assert deployed.create("next", output_domain=None)[0] == 400
    assert deployed.privacy("job")["step"] == STEP


@pytest.mark.parametrize("stage", ["_mapped", "_match", "_commit", "_publish"])
def test_after_its_plan_a_job_needs_no_list(deployed: Deployed, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = deployed.lists.publish(STEP, VALUES[:4])
    assert deployed.create("job")[0] == 202

    def stopped(*_: Any) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(Stages, stage, stopped)
        with pytest.raises(AssertionError):
            deployed.run("job")
        assert deployed.functions.service.row("job").state not in (State.RECEIVED, State.FINISHED)
    for number in range(1, 4):
        deployed.lists.publish(STEP + number, VALUES)
    assert deployed.lists.objects.values("terms", first, "0") is None
    deployed.lists.unlist(VALUES[0])
    for message in (StageMessage(job="job"), *deployed.functions.service.stages.resumed("job")):
        queue = "Stages" if isinstance(message, StageMessage) else "Maps"
        deployed.functions.sqs.send_message(
            QueueUrl=deployed.functions.urls[queue], MessageBody=message.model_dump_json()
        )
    assert deployed.run("job") == "SUCCESS"
    assert deployed.keys() == set(map(bucket_of, VALUES[:4]))


def test_the_list_of_the_row_is_used_however_old_it_is(deployed: Deployed) -> None:
    deployed.lists.publish(STEP, VALUES)
    assert deployed.create("job")[0] == 202
    deployed.functions.service.tables.now += 20 * HOUR
    assert deployed.run("job") == "SUCCESS"
    assert deployed.keys() == set(map(bucket_of, VALUES))


def two_lists_later(deployed: Deployed, _: ReadableList) -> dict[str, str]:
    deployed.lists.publish(STEP + 1, VALUES)
    deployed.lists.publish(STEP + 2, VALUES)
    return {}


def an_object_is_missing(deployed: Deployed, found: ReadableList) -> dict[str, str]:
    deployed.lists.objects.client.delete_object(Bucket=deployed.bucket, Key=f"current/terms/{found.step}-{found.run}/1")
    return {}


def a_value_is_unlisted(deployed: Deployed, _: ReadableList) -> dict[str, str]:
    deployed.lists.unlist(VALUES[0])
    return {}


def a_value_is_half_unlisted(deployed: Deployed, found: ReadableList) -> dict[str, str]:
    """The command has replaced an object, and stopped before it counted."""
    name = f"{sha256(VALUES[0].encode()).digest()[0] >> 7}"
    rows = [row for _, row in deployed.lists.objects.values("terms", found, name) or []]
    deployed.lists.objects.put("terms", found, name, [row for row in rows if row.value != VALUES[0]])
    return {}


def the_type_is_retired(deployed: Deployed, _: ReadableList) -> dict[str, str]:
    deployed.lists.end()
    return {}


def the_lister_is_removed(_: Deployed, __: ReadableList) -> dict[str, str]:
    return {"LIST_BUCKET": ""}


GONE = [
    two_lists_later,
    an_object_is_missing,
    a_value_is_unlisted,
    a_value_is_half_unlisted,
    the_type_is_retired,
    the_lister_is_removed,
]


@pytest.mark.parametrize("happens", GONE)
def test_a_job_whose_list_is_gone_before_its_plan_ends_and_spends_nothing(
    deployed: Deployed, happens: Callable[[Deployed, ReadableList], dict[str, str]]
) -> None:
    found = deployed.lists.publish(STEP, VALUES)
    assert deployed.create("job")[0] == 202
    changes = happens(deployed, found)
    assert deployed.run("job", **changes) == "INPUT_DATA_READ_FAILED"
    deployed.spends_nothing("job")


def test_a_value_that_was_unlisted_is_no_key_of_later_jobs(deployed: Deployed) -> None:
    found = deployed.lists.publish(STEP, VALUES)
    a_value_is_unlisted(deployed, found)
    assert deployed.create("job")[0] == 202
    assert deployed.run("job") == "SUCCESS"
    assert deployed.keys() == set(map(bucket_of, VALUES[1:]))


def the_most_values(deployed: Deployed) -> None:
    found = deployed.lists.publish(STEP, VALUES)
    assert deployed.lists.table.change("terms", [found], [found._replace(values=MOST_KEYS + 1)])


REFUSED: list[tuple[Callable[[Deployed], object], dict[str, Any], dict[str, Any], str]] = [
    (lambda _: None, TYPES, {}, "has no list yet: create the job after the next tick"),
    (lambda d: d.lists.publish(STEP, []), TYPES, {}, "list is empty: no value is shared yet, create the job later"),
    (the_most_values, TYPES, {}, "has more than 10,000,000 values, the most of a job: declare keys"),
    (lambda _: None, TYPES, {"type": "fledge"}, "no listed type of this deployment. Listed types: terms"),
    (lambda d: d.lists.publish(STEP, VALUES), {"fledge": TYPES["fledge"]}, {}, "Listed types: none; declare a type"),
    (lambda d: d.lists.publish(STEP, VALUES), {}, {}, "Listed types: none; declare a type with listed"),
]


@pytest.mark.parametrize("call", ["createJob", "preflight"])
@pytest.mark.parametrize(("given", "types", "domain", "why"), REFUSED)
def test_a_type_without_a_list_of_values_is_refused_with_what_to_change(
    deployed: Deployed,
    given: Callable[[Deployed], object],
    types: dict[str, Any],
    domain: dict[str, Any],
    why: str,
    call: str,
) -> None:
    given(deployed)
    status, answer = deployed.create("job", types, call, **domain)
    assert (status, answer["error"]["details"][0]["metadata"]) == (400, {"field": "output_domain.type"})
    assert why in answer["error"]["message"]
    assert deployed.functions.service.tables.jobs.read("job") is None


def test_a_row_of_an_earlier_version_has_its_keys_in_the_work_folder(deployed: Deployed) -> None:
    recorded = ReleasedKeys("terms", STEP, 1, Bound(Fraction(3), Fraction(1, 10**9)), "work/domain/1").recorded
    for name in ("bits", "run"):
        del recorded["released"][name]
    deployed.functions.service.tables.jobs.create("job", {}, 0, bytes(32), **recorded)
    found = ReleasedKeys.of(deployed.functions.service.row("job"))
    assert found is not None
    assert (found.name, found.count, found.run) == ("work/domain/1", 1, "")


# The same log on both implementations

LOG = [(value, clients) for n, value in enumerate(VALUES) for clients in [60 if n % 3 else 1]]
SHARED = [value for value, clients in LOG if clients == 60]


@dataclass
class Reading(Aggregation):
    """Stages that read lists of a bucket."""

    lists: Publishing | None = None

    @property
    def stages(self) -> Stages:
        made_ = super().stages
        return made_ if self.lists is None else replace(made_, digests=self.digests)

    def digests(self, pinned: ReleasedKeys) -> Iterator[bytes]:
        assert self.lists is not None
        found = ReadableList(pinned.step, pinned.bits, pinned.count, pinned.run)
        return (digest for digest, _ in self.lists.objects.rows(pinned.type_name, found))

    def finished(self, pinned: ReleasedKeys, reports: bytes) -> tuple[Any, dict[str, bytes]]:
        """The plan and the objects of the summary of a job with these keys."""
        self.bucket(INPUT).put_new("in/a.avro", reports)
        request = body("job", **KANON)
        assert self.tables.jobs.create("job", request, int(self.tables.now), bytes(32), **pinned.recorded)
        self.queue.append(StageMessage(job="job"))
        self.run_one(self.queue.popleft())
        plan = self.bucket(WORK).read(self.row("job").values["plan"])
        self.run()
        assert self.code("job") == "SUCCESS"
        return json.loads(plan), {name: self.bucket(OUTPUT).read(name) for name in self.names(OUTPUT)}


def fresh(engine: Running, lists: Publishing | None) -> Reading:
    made_ = aggregation(engine)
    return Reading(engine, made_.tables, made_.s3, made_.prefix, lists=lists)


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Machine]:
    types = {"terms": OF_THE_STACK["terms"]}
    with machine(tmp_path / "data", KEYS, types=types, asked=ON) as served:
        deployment = Deployment(served)
        for value, clients in LOG:
            deployment.join(value, clients)
        deployment.tick()
        yield served


def test_one_log_gives_the_same_plan_and_the_same_bytes_on_aws_and_on_one_machine(
    engine: Running, new_stack: Callable[..., Stack], directory: Machine
) -> None:
    stack = new_stack({"Types": json.dumps(OF_THE_STACK)})
    for value, clients in LOG:
        join(stack, [value], clients)
    stack.advance(2 * HOUR)
    storage = stack.storage
    published = Publishing(stack.session, storage.tables["Control"], storage.buckets["ListBucket"])
    types = read_types(json.dumps(OF_THE_STACK), int(stack.template.parameters["Period"]))
    on_aws = fresh(engine, published)
    pinned = KeyLists(join_bounds(types), published.table.newest).pinned("job", "terms")
    on_one_machine = fresh(engine, None)
    lists = Lister(directory.directory).file
    kept = published_lists(directory.directory.types, lists, on_one_machine.bucket(WORK)).pinned("job", "terms")
    assert (pinned.count, kept.count, pinned.name, bool(kept.name)) == (len(SHARED), len(SHARED), "", True)
    assert lists.newest("terms").values == len(SHARED)  # type: ignore[union-attr]
    reports = BytesIO()
    write_reports(reports, [made.report([(bucket_of(VALUES[n % 9]), 5_000)], n) for n in range(30)])
    there, here = (at.finished(of, reports.getvalue()) for at, of in ((on_aws, pinned), (on_one_machine, kept)))
    assert there == here
    assert set(on_aws.summary()) == set(map(bucket_of, SHARED))
