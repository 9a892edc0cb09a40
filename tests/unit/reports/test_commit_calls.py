"""A commit of any size makes one call for each 49 rows, and each call is one that DynamoDB accepts."""

import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
from botocore import UNSIGNED
from botocore.config import Config

from kanon import aws
from kanon.dynamo.limits import MOST_EXPRESSION_BYTES, MOST_ITEM_BYTES
from kanon.dynamo.transactions import MOST_ITEMS
from kanon.reports.histogram import partitions_of
from kanon.reports.job import Amount
from kanon.reports.service.answers import JOB_BODIES
from kanon.reports.service.shards import MOST_OBJECT_BYTES, MOST_SHARDS
from kanon.reports.shared_info import Unit
from kanon.reports.storage.budgets import MOST_ROWS, Budgets, CommitOutcome, Committing, charges
from kanon.reports.storage.report_jobs import ReportJobs

AMOUNT, CAP = Amount(10_000, 10**7), Amount(64_000, 10**8)
DAY = 20_454
MOST_BYTES = 4 << 20
"""Of one transaction."""
ALL_HOURS = range(24)


@dataclass
class Sent:
    """A client whose calls are answered here, and the bodies that it was given."""

    bodies: list[str]
    client: Any

    @classmethod
    def checked(cls) -> "Sent":
        """A client as the functions have it, but it checks parameters against the model of DynamoDB."""
        config = aws.CONFIG.merge(Config(parameter_validation=True, signature_version=UNSIGNED))
        sent = cls([], aws.session().create_client("dynamodb", region_name="us-east-1", config=config))
        sent.client.meta.events.register("before-call.dynamodb.TransactWriteItems", sent._answer)
        sent.client.meta.events.register("before-call.dynamodb.PutItem", _done)
        return sent

    def _answer(self, params: dict[str, Any], **_: Any) -> tuple[Any, dict[str, Any]]:
        self.bodies.append(params["body"])
        return _done()


def _done(**_: Any) -> tuple[Any, dict[str, Any]]:
    return SimpleNamespace(status_code=200), {}


def commit(client: Any, rows: int, hours: range) -> CommitOutcome:
    wanted = charges(Unit(f"{n}", "https://report.test", DAY * 24 + hour) for n in range(rows) for hour in hours)
    jobs, budgets = ReportJobs(client, "jobs"), Budgets(client, "budgets", CAP)
    return Committing(client, jobs, budgets, lambda: True, lambda: DAY * 86_400).commit("job", wanted, AMOUNT, "0" * 32)


@pytest.mark.slow
@pytest.mark.parametrize(("rows", "calls"), [(0, 1), (1, 1), (49, 1), (50, 2), (98, 2), (99, 3), (MOST_ROWS, 613)])
def test_a_commit_makes_one_call_for_each_49_rows(rows: int, calls: int) -> None:
    sent: list[int] = []
    client = SimpleNamespace(
        put_item=lambda **_: None,
        transact_write_items=lambda TransactItems: sent.append(len(TransactItems)),  # noqa: N803
    )
    assert commit(client, rows, ALL_HOURS[:1]) is CommitOutcome.COMMITTED
    assert len(sent) == calls <= 620
    assert max(sent) <= MOST_ITEMS


def test_a_chunk_of_whole_days_is_within_the_limits_of_a_transaction() -> None:
    sent = Sent.checked()
    assert commit(sent.client, 49, ALL_HOURS) is CommitOutcome.COMMITTED
    (body,) = sent.bodies
    items = json.loads(body)["TransactItems"]
    assert len(items) == MOST_ITEMS
    expressions = [
        text for one in items for write in one.values() for name, text in write.items() if name.endswith("Expression")
    ]
    assert len(body) < MOST_BYTES
    assert 2_000 < max(map(len, expressions)) < MOST_EXPRESSION_BYTES


def test_the_row_of_the_largest_job_is_within_the_limit_of_an_item() -> None:
    """A request of two-byte characters, each of which is stored as six, and the parts of a discovery of all shards."""
    name = f"{bytes(32).hex()}/staged/{bytes(32).hex()}"
    parts = [name] * partitions_of(None, MOST_OBJECT_BYTES * MOST_SHARDS)
    sent = Sent.checked()
    jobs, budgets = ReportJobs(sent.client, "jobs"), Budgets(sent.client, "budgets", CAP)
    committing = Committing(sent.client, jobs, budgets, lambda: True, lambda: 0)
    assert committing.commit("job", [], AMOUNT, "0" * 32, parts=parts)
    request = json.dumps({"more": "\u00e4" * (JOB_BODIES.most // 2)})
    rest = 16 << 10  # names, digests, counters and messages
    assert 200_000 < len(request) + len(sent.bodies[0]) < MOST_ITEM_BYTES - rest
