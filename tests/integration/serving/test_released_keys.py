"""Mode kanon of reports: the keys of a job are the values that the gate has released when the job is received."""

import json
import time
from collections.abc import Iterator
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from kanon.client import Bearer, Client
from kanon.client.answers import Join, batch_entry
from kanon.client.values import bucket_of
from kanon.gate.lists import KEPT
from kanon.gate.mechanism.bounds import guarantee
from kanon.reports.clients.devices import Windows
from kanon.reports.service.stages import Stages
from kanon.serving.lists import Lister
from tests.integration.local.guides import blocks, run
from tests.integration.serving import reported
from tests.integration.serving.machine import KEYS, START, TYPES, Machine, machine
from tests.integration.serving.reported import ON, code, collect, left, row_of, summary, told, turn

TERM = {"k": 20, "window": 24, "profile": "crossing", "listed": True}
WITH_LIST = {**TYPES, "terms": TERM}
SHARED, ALSO, RARE = "a shared term", "another shared term", "a rare term"


class Deployment:
    """A service with a listed type and reports."""

    def __init__(self, served: Machine) -> None:
        self.served = served
        self.lister = Lister(served.directory)
        self.type_ = served.directory.types["terms"]

    def join(self, value: str, clients: int) -> None:
        joins = [batch_entry(Join("terms", value, f"client-{n}"), listed=True) for n in range(clients)]
        answer = self.served.request("POST", "/v1:batchJoin", {"joins": joins})
        assert (answer.status, json.loads(answer.body)) == (200, {"results": [{}] * clients})

    def share(self, value: str) -> None:
        self.join(value, self.type_.parameters.surely_true_from * 2)  # some share a token

    def tick(self) -> None:
        self.served.evaluate()
        assert self.lister.behind(self.served.now) == 0

    def release(self, value: str) -> None:
        self.share(value)
        self.tick()

    def asked(self, job: str, **domain: Any) -> tuple[int, Any]:
        body = reported.body(job, "10")
        for name in ("output_domain_bucket_name", "output_domain_blob_prefix"):
            del body["job_parameters"][name]
        body["output_domain"] = {"mode": "kanon", "type": "terms"} | domain
        answer = self.served.request("POST", "/v1alpha/createJob", body)
        return answer.status, json.loads(answer.body)

    def create(self, job: str) -> None:
        assert self.asked(job) == (202, {})


@pytest.fixture
def deployed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployment]:
    monkeypatch.setattr(reported, "BUCKETS", (bucket_of(SHARED), bucket_of(RARE)))
    with machine(tmp_path / "data", KEYS, types=WITH_LIST, asked=ON) as served:
        served.now = START
        turn(served)
        served.now += 11
        yield Deployment(served)


def keys_of(deployed: Deployment, job: str) -> set[int]:
    assert code(deployed.served, job) == "SUCCESS"
    return summary(deployed.served.directory.path, job).keys()


def test_the_keys_are_the_released_values_also_without_reports_and_no_others(deployed: Deployment) -> None:
    collect(deployed.served, range(40))
    deployed.share(SHARED)
    deployed.share(ALSO)
    deployed.join(RARE, 1)
    deployed.tick()
    deployed.create("first")
    turn(deployed.served)
    assert keys_of(deployed, "first") == {bucket_of(SHARED), bucket_of(ALSO)}
    found = summary(deployed.served.directory.path, "first")
    assert abs(found[bucket_of(SHARED)] - 40 * reported.VALUE) < 200_000
    assert abs(found[bucket_of(ALSO)]) < 200_000
    assert found[bucket_of(SHARED)] != 40 * reported.VALUE or found[bucket_of(ALSO)] != 0, "no noise was added"
    assert left(deployed.served) == "2"
    assert bucket_of(SHARED) == int.from_bytes(sha256(SHARED.encode()).digest()[:16], "big")


def test_clients_that_join_and_report_give_the_sum_of_their_value(deployed: Deployment) -> None:
    served, clients, amount = deployed.served, deployed.type_.parameters.surely_true_from * 2, 60_000
    pending = []
    with Client(f"http://127.0.0.1:{served.server.port}", auth=Bearer(served.key)) as sender:
        for number in range(clients):
            device = Client(sender._connection, reports=Windows(reported.ORIGIN, sparsity=2))
            device._calls.now = lambda: served.now
            for value in (SHARED, f"a term of {number} alone"):
                made, fits = device.seal_with_join("terms", value, amount, f"client-{number}")
                assert fits is (value == SHARED)  # the second one exceeds the budget: its report is empty
                pending += made
        served.now += 1200
        assert sender.send_due(pending, int(served.now * 1000)) == []
    assert len(pending) == 3 * clients
    deployed.tick()
    deployed.create("first")
    turn(served)
    assert keys_of(deployed, "first") == {bucket_of(SHARED)}
    found = summary(served.directory.path, "first")[bucket_of(SHARED)]
    assert abs(found - clients * amount) < 200_000
    assert row_of(served, "first").values["counters"]["accepted"] == 2 * clients


def test_the_block_of_the_guide_runs(deployed: Deployment) -> None:
    served = deployed.served
    auth = Bearer(served.key)
    names: dict[str, Any] = {"Client": Client, "Windows": Windows, "auth": auth, "now": (time.time() + 1200) * 1000}
    block = blocks("python-client.md")[-1].replace("reports=", "auth=auth, reports=")
    run(block.replace("https://shop.example", reported.ORIGIN), f"http://127.0.0.1:{served.server.port}", names)
    names["device"].close()
    assert (names["fits"], names["pending"]) == (True, [])


def test_a_job_keeps_the_keys_of_the_moment_at_which_it_was_received(deployed: Deployment) -> None:
    collect(deployed.served, range(3))
    deployed.release(SHARED)
    deployed.create("first")
    deployed.share(ALSO)
    for _ in range(KEPT + 1):  # the list that it was received with is gone
        deployed.tick()
    assert deployed.lister.file.newest("terms").values == 2
    turn(deployed.served)
    assert keys_of(deployed, "first") == {bucket_of(SHARED)}
    deployed.create("second")
    assert told(deployed.served, "second")["privacy"]["released_keys"]["keys"] == 2


@pytest.mark.parametrize("stage", ["_plan", "_match", "_commit", "_publish"])
def test_a_job_that_stopped_anywhere_continues_with_its_own_keys(
    deployed: Deployment, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    collect(deployed.served, range(3))
    deployed.release(SHARED)
    deployed.create("first")

    def stopped(*_: Any) -> None:
        raise OSError

    with monkeypatch.context() as patch:
        patch.setattr(Stages, stage, stopped)
        turn(deployed.served)
        assert told(deployed.served, "first")["job_status"] != "FINISHED"
    deployed.release(ALSO)
    turn(deployed.served)
    assert keys_of(deployed, "first") == {bucket_of(SHARED)}


def test_the_answer_adds_the_guarantees_of_both_parts(deployed: Deployment) -> None:
    deployed.release(SHARED)
    deployed.create("first")
    privacy = told(deployed.served, "first")["privacy"]
    join = guarantee(deployed.type_.parameters).watched
    found = privacy["released_keys"]
    assert (found["type"], found["keys"], found["step"]) == ("terms", 1, deployed.lister.visible(deployed.served.now))
    assert (privacy["mode"], privacy["delta"], privacy.get("threshold")) == ("kanon", "0", None)
    assert Fraction(found["sum_epsilon"]) == 10 + join.epsilon
    assert join.delta <= Fraction(found["sum_delta"]) <= join.delta * Fraction(1_000_011, 1_000_000)
    assert f"epsilon {found['sum_epsilon']} = 10 + 1 x {found['join_epsilon']}" in privacy["this_summary"][-3]
    assert f"epsilon {float(12 + join.epsilon):g} = 12 + 1 x" in privacy["all_summaries"][-3]
    for lines in (privacy["this_summary"], privacy["all_summaries"]):
        assert "all answers of the gate would change by a factor of at most" in lines[-2]


REFUSED = [
    ({"type": "fledge"}, "output_domain.type", "no listed type of this deployment. Listed types: terms"),
    ({"type": "secret"}, "output_domain.type", "no listed type of this deployment. Listed types: terms"),
    ({"type": ""}, "output_domain.type", "is missing: name a listed type"),
    ({"mode": "discover"}, "output_domain.type", "the mode discover takes no type: leave it out"),
    ({"mode": "secret"}, "output_domain.mode", "use declared, discover or kanon"),
    ({"step": 3}, "output_domain", "unknown"),
]


@pytest.mark.parametrize(("domain", "field", "why"), REFUSED)
def test_other_types_are_refused_with_what_to_change(
    deployed: Deployment, domain: dict[str, Any], field: str, why: str
) -> None:
    deployed.release(SHARED)
    refused(deployed, domain, field, why)


def refused(deployed: Deployment, domain: dict[str, Any], field: str, why: str) -> None:
    status, answer = deployed.asked("first", **domain)
    assert (status, answer["error"]["details"][0]["metadata"]) == (400, {"field": field})
    assert why in answer["error"]["message"]
    assert "secret" not in answer["error"]["message"]
    assert deployed.served.request("GET", "/v1alpha/getJob?job_request_id=first").status == 404
    assert list((deployed.served.directory.path / "work").iterdir()) == []


def test_a_type_without_values_is_refused_until_it_has_some(deployed: Deployment) -> None:
    refused(deployed, {}, "output_domain.type", "has no list yet: create the job after the next tick")
    deployed.join(RARE, 1)
    deployed.tick()
    refused(deployed, {}, "output_domain.type", "list is empty: no value is shared yet, create the job later")
    deployed.release(SHARED)
    deployed.create("first")


def test_a_list_with_more_values_than_a_job_may_have_is_refused(
    deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kanon.reports.service.job_routes.MOST_KEYS", 1)
    deployed.release(SHARED)
    deployed.create("small")
    turn(deployed.served)
    deployed.release(ALSO)
    refused(deployed, {}, "output_domain.type", "has more than 1 values, the most of a job: declare keys")


def test_a_preflight_says_the_same_and_pins_nothing(deployed: Deployment) -> None:
    body = reported.body("first", "10") | {"output_domain": {"mode": "kanon", "type": "terms"}}
    answer = deployed.served.request("POST", "/v1/jobs:preflight", body)
    assert "the mode kanon takes no declared keys: leave it out" in answer.body.decode()
    body["job_parameters"] = {"attribution_report_to": reported.ORIGIN}
    answer = deployed.served.request("POST", "/v1/jobs:preflight", body)
    assert "has no list yet" in answer.body.decode()
    collect(deployed.served, range(3))
    turn(deployed.served)
    deployed.release(SHARED)
    answer = deployed.served.request("POST", "/v1/jobs:preflight", body)
    assert (answer.status, json.loads(answer.body)["accepted"]) == (200, 3)
    assert list((deployed.served.directory.path / "work").iterdir()) == []


def test_a_second_job_of_a_name_writes_nothing_and_changes_nothing(deployed: Deployment) -> None:
    collect(deployed.served, range(3))
    deployed.release(SHARED)
    deployed.create("first")
    turn(deployed.served)
    deployed.release(ALSO)
    assert deployed.asked("first")[0] == 409
    assert list((deployed.served.directory.path / "work").iterdir()) == []
    assert told(deployed.served, "first")["privacy"]["released_keys"]["keys"] == 1


def test_two_values_with_one_key_are_one_key(deployed: Deployment) -> None:
    deployed.release(SHARED)
    digest = sha256(SHARED.encode()).digest()
    step = deployed.lister.visible(deployed.served.now)
    twin = digest[:16] + bytes(16)
    deployed.lister.file.database.execute("INSERT INTO entries VALUES ('terms', ?, ?, 'twin', 0)", (step, twin))
    deployed.lister.file.database.execute("UPDATE lists SET count = 2")
    collect(deployed.served, range(3))
    deployed.create("first")
    turn(deployed.served)
    assert keys_of(deployed, "first") == {bucket_of(SHARED)}


def test_a_list_that_is_gone_between_two_reads_is_refused(
    deployed: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployed.release(SHARED)
    monkeypatch.setattr("kanon.serving.lists.ListsFile.digests", lambda *_: [])
    refused(
        deployed, {}, "output_domain.type", "was replaced, or a value of it was unlisted, before the job was planned"
    )


def test_jobs_of_a_deployment_without_listed_types_are_refused(tmp_path: Path) -> None:
    with machine(tmp_path / "data", KEYS, asked=ON) as served:
        body = reported.body("first") | {"output_domain": {"mode": "kanon", "type": "fledge"}}
        body["job_parameters"] = {"attribution_report_to": reported.ORIGIN}
        answer = served.request("POST", "/v1alpha/createJob", body)
        assert (answer.status, b"Listed types: none; declare a type with listed" in answer.body) == (400, True)
        assert not (tmp_path / "data" / "lists.db").exists()
