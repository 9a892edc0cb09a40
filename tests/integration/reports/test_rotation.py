"""Rotation of the keys: on time, after crashes, among workers, and after the table of budgets was replaced."""

import json
import random
from typing import Any

import pytest

from kanon import clock
from kanon.reports.clients.encrypt import ClientReport, encrypt, usable_keys
from kanon.reports.errors import JobError
from kanon.reports.payload import Contribution, decode, open_sealed
from kanon.reports.storage.key_ring import DAY, StoredRing
from tests.faults.reports.failing_calls import Fault, KilledError
from tests.integration.gate.tables import Running
from tests.integration.reports.issuing import Issuing, issuing
from tests.integration.reports.tables import NOW
from tests.table_ids import give_ids
from tests.unit.reports import made


@pytest.fixture
def deployment(engine: Running, monkeypatch: pytest.MonkeyPatch) -> Issuing:
    monkeypatch.setattr(clock, "sleep", lambda _: None)
    give_ids(monkeypatch)
    return issuing(engine)


def document(keys: StoredRing, now: float) -> str:
    """The public keys as ``collect`` answers them."""
    return json.dumps({"keys": [{"id": key.id, "key": key.public} for key in keys.published(now)]})


def test_the_first_run_issues_one_key_for_the_table_of_budgets(deployment: Issuing) -> None:
    keys = deployment.run()
    assert len(keys.published(NOW)) == 1
    assert keys.epoch == deployment.epoch().budgets.epoch()
    assert deployment.fits()


def test_a_client_encrypts_to_a_published_key_and_its_private_key_opens_the_report(deployment: Issuing) -> None:
    deployment.run()
    deployment.now += 8 * DAY
    keys = deployment.run()
    assert len(keys.published(deployment.now)) == 2
    cached = usable_keys(None, 0, lambda: (document(keys, deployment.now), 60))
    report = ClientReport((Contribution(7, 3),), 0, made.ORIGIN, "attribution-reporting", "https://shop.test")
    for index in range(2):
        sealed = encrypt(report, cached.keys, choose=lambda some, index=index: some[index])
        private = deployment.private().existing([key.id for key in keys.opening(deployment.now)])
        _, pairs = decode(open_sealed(sealed.payload, private[sealed.key_id], sealed.shared_info))
        assert Contribution(7, 3) in pairs


def test_a_run_with_nothing_due_changes_nothing(deployment: Issuing) -> None:
    before = deployment.run()
    deployment.now += 7 * DAY - 1
    assert deployment.run() == before


def test_half_a_year_of_rotation_keeps_keys_published_and_destroys_the_old_ones(deployment: Issuing) -> None:
    for _ in range(19):
        keys = deployment.run()
        assert 1 <= len(keys.published(deployment.now)) <= 2
        assert all(deployment.now < key.opens_until + DAY for key in keys.keys)
        assert deployment.secrets() == {key.id for key in keys.keys}
        deployment.now += 10 * DAY
    assert len(keys.keys) == 13  # a new one with each call, every 10 days


@pytest.mark.parametrize("seed", range(2))
def test_two_workers_at_once_issue_one_key(deployment: Issuing, seed: int) -> None:
    chance, other = random.Random(seed), deployment.worker()
    worker = deployment.worker()
    for client in (worker.epoch.client, worker.private._client):
        call: Any = client._make_api_call  # type: ignore[attr-defined]

        def interrupted(operation: str, asked: Any, call: Any = call) -> Any:
            if chance.random() < 0.5:
                other.run(deployment.now)
            return call(operation, asked)

        client._make_api_call = interrupted  # type: ignore[attr-defined]
    worker.run(deployment.now)
    assert len(deployment.ring().keys) == 1
    assert deployment.fits()


@pytest.mark.parametrize("restored", [False, True], ids=["created again", "restored"])
def test_after_a_change_of_the_budget_table_no_key_is_published_and_no_job_continues(
    deployment: Issuing, restored: bool
) -> None:
    keys = deployment.run()
    assert deployment.epoch().in_force() == keys
    deployment.replace_budgets(epoch=keys.epoch if restored else None)
    with pytest.raises(JobError, match="issue new keys") as refused:
        deployment.epoch().in_force()
    assert refused.value.code == "PRIVACY_BUDGET_ERROR"
    deployment.now += 8 * DAY
    after = deployment.run()
    assert after.withdrawn
    assert after.published(deployment.now) == ()
    assert len(after.keys) == 1


def test_keys_of_another_epoch_of_the_same_table_are_not_in_force(deployment: Issuing) -> None:
    keys = deployment.run()
    begins = deployment.epoch().budgets.begin("another", keys.epoch)
    deployment.running.client().transact_write_items(TransactItems=[begins])
    with pytest.raises(JobError, match="issue new keys"):
        deployment.epoch().in_force()


def test_a_new_epoch_ends_every_key_and_begins_with_a_new_one(deployment: Issuing) -> None:
    old = deployment.run()
    deployment.replace_budgets(epoch=old.epoch)
    assert deployment.run().withdrawn
    assert deployment.epoch().renew(deployment.ring())
    assert not deployment.epoch().renew(old), "the ring has changed since it was read"
    keys = deployment.run()
    assert keys.epoch == deployment.epoch().budgets.epoch() != old.epoch
    assert len(keys.published(deployment.now)) == 1
    assert not {key.id for key in old.keys} & {key.id for key in keys.keys}
    assert deployment.fits()
    assert deployment.epoch().in_force() == keys


def test_a_new_epoch_ends_a_key_that_is_being_made(deployment: Issuing) -> None:
    deployment.run()
    deployment.now += 7 * DAY
    worker, fault = deployment.worker(), Fault(0, "killed after")
    fault.watch(worker.private._client)
    with pytest.raises(KilledError):
        worker.run(deployment.now)
    assert deployment.ring().pending in deployment.secrets()
    assert deployment.epoch().renew(deployment.ring())
    deployment.run()
    assert deployment.fits()


def test_a_lost_ring_begins_again_without_the_old_keys(deployment: Issuing) -> None:
    old = deployment.run()
    client = deployment.running.client()
    client.delete_item(TableName=deployment.control, Key={"name": {"S": "reports#keys"}})
    keys = deployment.run()
    assert keys.epoch == old.epoch
    assert not {key.id for key in old.keys} & {key.id for key in keys.keys}


def test_a_key_whose_secret_is_gone_or_marked_for_deletion_does_not_exist(deployment: Issuing) -> None:
    deployment.run()
    deployment.now += 7 * DAY
    first, second = deployment.run().keys
    private = deployment.private()
    assert set(private.existing([first.id, second.id])) == {first.id, second.id}
    private.destroy(first.id)
    private.destroy(first.id)
    manager = deployment.running.session.client("secretsmanager")
    manager.delete_secret(SecretId=f"{deployment.prefix}{second.id}", RecoveryWindowInDays=7)
    assert deployment.private().existing([first.id, second.id]) == {}
    assert set(private.existing([first.id])) == {first.id}, "it is in the memory of this worker"
    assert set(private.existing([])) == set()
    assert private.existing([first.id]) == {}, "a key that is not asked for is forgotten"


def test_private_keys_are_only_in_their_secrets(deployment: Issuing) -> None:
    keys = deployment.run()
    private = deployment.private()
    existing = private.existing([key.id for key in keys.keys])
    items = deployment.running.client().scan(TableName=deployment.control)["Items"]
    shown = f"{private!r} {existing!r} {keys!r} {items!r} {deployment.worker()!r}"
    (text,) = deployment.texts()
    assert text not in shown
    raw = existing[keys.keys[0].id].private_bytes_raw()
    assert raw.hex() not in shown
    assert repr(raw) not in shown
