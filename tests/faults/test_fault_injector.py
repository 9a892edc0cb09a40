"""The fault injector on calls of S3: an object is written once and completely, or the caller gets an error."""

from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import BotoCoreError, ClientError, IncompleteReadError, ResponseStreamingError

from kanon import aws
from kanon.reports.storage.objects import Objects
from tests.faults.failures import FAILURES, OBJECT_FAILURES, Failure
from tests.faults.fault_injector import Behaviour, Call, FaultInjector, ProcessDied, Worker, undisturbed
from tests.moto_engine import Moto

BUCKET, KEY, BODY = "kanon-1-reports-workbucket", "jobs/a b.bin", bytes(range(256)) * 4
GENERAL = [failure for failure in FAILURES if not failure.only]
NOT_READ = (BotoCoreError, ClientError, ProcessDied, IncompleteReadError, ResponseStreamingError)


class Shop:
    """A bucket whose clients pass a fault injector."""

    def __init__(self, engine: Moto) -> None:
        self.seconds = 0.0
        self.injector = FaultInjector(self.pass_time, lambda: self.seconds)
        self.plain = engine.session().client("s3")
        self.client = self.injector.attach(engine.session()).client("s3", config=aws.OBJECTS)
        self.plain.create_bucket(Bucket=BUCKET)

    def pass_time(self, seconds: float) -> None:
        self.seconds += seconds

    def work(self, behaviour: Behaviour = undisturbed) -> Worker:
        """A new worker; the calls of this thread are its."""
        self.injector.worker = Worker(behaviour)
        return self.injector.worker

    def stored(self) -> bytes | None:
        found = self.plain.list_objects_v2(Bucket=BUCKET).get("Contents", [])
        return self.plain.get_object(Bucket=BUCKET, Key=KEY)["Body"].read() if found else None


@pytest.fixture(scope="module")
def engine() -> Iterator[Moto]:
    engine = Moto()
    engine.start()
    yield engine
    engine.stop()


@pytest.fixture
def shop(engine: Moto, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setattr("botocore.endpoint.time.sleep", lambda _: None)
    shop = Shop(engine)
    yield shop
    shop.injector.worker = None
    shop.plain.delete_object(Bucket=BUCKET, Key=KEY)
    shop.plain.delete_bucket(Bucket=BUCKET)


def test_a_call_has_its_operation_and_its_object(shop: Shop) -> None:
    seen = []

    def note(call: Call) -> Any:
        seen.append((call.operation, call.object, call.table))
        return call.send()

    worker = shop.work(note)
    shop.client.put_object(Bucket=BUCKET, Key=KEY, Body=BODY)
    assert shop.client.get_object(Bucket=BUCKET, Key=KEY)["Body"].read() == BODY
    shop.client.list_objects_v2(Bucket=BUCKET, Prefix="jobs/")
    assert seen == [
        ("s3.PutObject", ("workbucket", KEY), ""),
        ("s3.GetObject", ("workbucket", KEY), ""),
        ("s3.ListObjectsV2", ("workbucket", ""), ""),
    ]
    assert worker.calls == [operation for operation, _, _ in seen]


@pytest.mark.parametrize("failure", [*GENERAL, *OBJECT_FAILURES], ids=str)
def test_after_any_failure_an_object_is_complete_or_absent_and_a_retry_completes_it(
    failure: Failure, shop: Shop
) -> None:
    if failure.applies_to("s3.PutObject"):
        shop.work(failure.at(1, "s3.PutObject", shop.pass_time))
        try:
            Objects(shop.client, BUCKET).put_new(KEY, BODY)
        except NOT_READ:
            assert shop.stored() in (None, BODY)
        else:
            assert shop.stored() == BODY
    shop.work()
    Objects(shop.client, BUCKET).put_new(KEY, BODY)
    assert shop.stored() == BODY
    if failure.applies_to("s3.GetObject"):
        shop.work(failure.at(1, "s3.GetObject", shop.pass_time))
        try:
            assert Objects(shop.client, BUCKET).read(KEY) == BODY
        except NOT_READ:
            assert not failure.name.endswith("-once"), "a second attempt would have succeeded"


def test_a_truncated_object_is_detected(shop: Shop) -> None:
    shop.plain.put_object(Bucket=BUCKET, Key=KEY, Body=BODY)
    (cut,) = [failure for failure in OBJECT_FAILURES if failure.name == "cut-short"]
    shop.work(cut.at(1, "s3.GetObject", shop.pass_time))
    with pytest.raises(IncompleteReadError):
        Objects(shop.client, BUCKET).read(KEY)


def test_a_client_of_objects_waits_for_the_configured_timeout(shop: Shop) -> None:
    (unanswered,) = [failure for failure in FAILURES if failure.name == "unanswered-once"]
    shop.work(unanswered.at(1, "s3.PutObject", shop.pass_time))
    shop.client.put_object(Bucket=BUCKET, Key=KEY, Body=BODY)
    assert shop.seconds > aws.OBJECTS.read_timeout
    assert shop.stored() == BODY
