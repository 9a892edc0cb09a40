"""A ledger in a DynamoDB table has the guarantees of one in a directory, on every engine available here."""

import itertools
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from botocore.exceptions import ClientError

from kanon.noise.bound import Bound
from kanon.release import Ledger, release
from kanon.release.errors import InputError, LedgerError, OverBudgetError
from kanon.release.output import csv_bytes
from kanon.release.shared_stores import TableSecrets, TableStore
from tests.integration.gate.tables import Running, running, take_turns
from tests.moto_engine import ENGINES
from tests.unit.release.made import LOG, Given, spec

_numbers = itertools.count()


@pytest.fixture(scope="module", params=sorted(ENGINES, reverse=True))
def engine(request: pytest.FixtureRequest) -> Iterator[Running]:
    with running(request.param) as engine:
        yield engine


@pytest.fixture
def table(engine: Running) -> str:
    name = f"ledger-{next(_numbers)}"
    engine.client().create_table(
        TableName=name,
        KeySchema=[{"AttributeName": "kind", "KeyType": "HASH"}, {"AttributeName": "name", "KeyType": "RANGE"}],
        AttributeDefinitions=[{"AttributeName": key, "AttributeType": "S"} for key in ("kind", "name")],
        BillingMode="PAY_PER_REQUEST",
    )
    return name


def ledger(engine: Running, table: str) -> Ledger:
    client = engine.client()
    return Ledger(TableStore(client, table), TableSecrets(client, table))


def test_two_operators_share_a_release_and_pay_once(engine: Running, table: str) -> None:
    made = [release("log.csv", spec(), ledger(engine, table), dataset="d", engine=LOG) for _ in range(2)]
    assert [one.new for one in made] == [True, False]
    assert csv_bytes(made[0].released, ("set",)) == csv_bytes(made[1].released, ("set",))
    (account,) = ledger(engine, table).accounts()
    assert account.spent.epsilon == 1
    with pytest.raises(InputError, match="made from other data"):
        release("log.csv", spec(), ledger(engine, table), dataset="d", engine=Given(("a", 99)))


def test_only_as_many_operators_spend_as_the_budget_allows(engine: Running, table: str) -> None:
    ledger(engine, table).set_budget("d", "user", Bound(Fraction(3), Fraction(1, 10)))
    clients = [engine.client() for _ in range(8)]
    take_turns(engine, *clients)
    opened = [Ledger(TableStore(client, table), TableSecrets(client, table)) for client in clients]

    def try_to_release(number: int) -> bool:
        try:
            release("log.csv", spec(), opened[number], dataset="d", name=f"n{number}", engine=LOG)
        except OverBudgetError:
            return False
        return True

    with ThreadPoolExecutor(4) as operators:
        assert sum(operators.map(try_to_release, range(8))) == 3
    kept = ledger(engine, table)
    assert len(kept.spends()) == 3
    assert kept.without_secret() == []


def test_a_line_whose_answer_was_lost_is_found_and_its_secret_stays(engine: Running, table: str) -> None:
    kept, client = ledger(engine, table), engine.client()
    store = TableStore(client, table)
    kept._store = store
    call, lost = client._make_api_call, []

    def twice(operation: str, asked: Any) -> Any:
        answer = call(operation, asked)
        if operation == "PutItem" and not lost:  # the client repeats a put whose answer was lost
            lost.append(operation)
            return call(operation, asked)
        return answer

    client._make_api_call = twice
    made = release("log.csv", spec(), kept, dataset="d", engine=LOG)
    assert lost
    assert not release("log.csv", spec(), ledger(engine, table), dataset="d", engine=LOG).new
    assert made.new


def test_a_forgotten_release_has_no_secret(engine: Running, table: str) -> None:
    kept = ledger(engine, table)
    made = release("log.csv", spec(), kept, dataset="d", engine=LOG)
    kept.forget(made.id)
    with pytest.raises(LedgerError, match="was destroyed"):
        release("log.csv", spec(), kept, dataset="d", engine=LOG)


def test_a_missing_table_and_a_missing_line_are_named(engine: Running, table: str) -> None:
    with pytest.raises(LedgerError, match=r"no-table cannot be used as a ledger \(ResourceNotFoundException\)"):
        ledger(engine, "no-table").accounts()
    kept = ledger(engine, table)
    for name in ("a", "b"):
        kept.add_note("d", name)
    engine.client().delete_item(TableName=table, Key={"kind": {"S": "line"}, "name": {"S": "000000000000"}})
    with pytest.raises(LedgerError, match="a line is missing"):
        kept.accounts()


def test_a_ledger_of_several_pages_is_read_whole_and_in_order(engine: Running, table: str) -> None:
    """DynamoDB answers a query with at most 1 MB; an item has at most 400 KB."""
    client, pages = engine.client(), []
    client.meta.events.register("after-call.dynamodb.Query", lambda **_: pages.append(1))
    kept = Ledger(TableStore(client, table), TableSecrets(client, table))
    kept.set_budget("d", "user", Bound(Fraction(1), Fraction(1, 10)))
    texts = [f"{number} " + "x" * 390_000 for number in range(3)]
    for text in texts:
        kept.add_note("d", text)
    made = release("log.csv", spec(), kept, dataset="d", engine=LOG)
    pages.clear()
    lines = TableStore(client, table).lines()
    assert len(pages) >= 2
    assert [json.loads(line).get("text") for line in lines] == [None, *texts, None]
    with pytest.raises(OverBudgetError):
        release("log.csv", spec(), kept, dataset="d", name="second", engine=LOG)
    assert [one.name for one in kept.spends()] == [made.name]


def test_every_read_is_strongly_consistent(engine: Running, table: str) -> None:
    """An engine on one machine always is: without this, a spend of a moment ago could be missed in production."""
    client, asked = engine.client(), []
    client.meta.events.register(
        "provide-client-params.dynamodb", lambda params, model, **_: asked.append((model.name, params))
    )
    kept = Ledger(TableStore(client, table), TableSecrets(client, table))
    release("log.csv", spec(), kept, dataset="d", engine=LOG)
    reads = [params["ConsistentRead"] for name, params in asked if name in ("Query", "GetItem")]
    assert {name for name, _ in asked} == {"Query", "GetItem", "PutItem"}
    assert all(reads)
    assert all("ConditionExpression" in params for name, params in asked if name == "PutItem")


def test_a_refused_call_is_printed_as_one_line(engine: Running, table: str) -> None:
    client = engine.client()

    def refuse(**_: Any) -> None:
        raise ClientError({"Error": {"Code": "AccessDeniedException", "Message": "secret details"}}, "PutItem")

    client.meta.events.register_first("before-call.dynamodb.PutItem", refuse)
    with pytest.raises(LedgerError, match="AccessDeniedException") as caught:
        Ledger(TableStore(client, table), TableSecrets(client, table)).add_note("d", "text")
    assert "secret details" not in str(caught.value)
