"""Statements: 25 per call, retried by the error code of each; no failed statement counts as done."""

from typing import Any

import pytest
from botocore.exceptions import ClientError
from botocore.session import Session

from kanon import clock
from kanon.dynamo.batches import ATTEMPTS
from kanon.dynamo.statements import PASSING, REFUSED, STATEMENTS_A_CALL, execute_all, insert, replace
from kanon.local.partiql import read

ITEM = {"key": {"B": b"k"}, "members": {"B": b"m"}, "evaluated": {"N": "7"}}


@pytest.fixture(autouse=True)
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr(clock, "sleep", waits.append)
    return waits


class Table:
    """Answers the n-th attempt at each statement with its n-th error code; None and the end of the list: executed."""

    def __init__(self, codes: dict[int, list[str | None]]) -> None:
        self.codes, self.calls = codes, []  # type: ignore[var-annotated]

    def batch_execute_statement(self, Statements: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
        numbers = [statement["Parameters"][0] for statement in Statements]
        self.calls.append(numbers)
        codes = [self.codes.get(number, []) for number in numbers]
        errors = [code.pop(0) if code else None for code in codes]
        return {"Responses": [{"Error": {"Code": error}} if error else {"TableName": "t"} for error in errors]}


def execute(table: Table, count: int) -> tuple[list[int], list[int]]:
    return execute_all(table, [{"Statement": "", "Parameters": [n]} for n in range(count)])  # type: ignore[arg-type]


def test_an_insert_statement_names_every_attribute_of_the_item() -> None:
    assert insert("t", ITEM) == {
        "Statement": "INSERT INTO \"t\" VALUE {'key': ?, 'members': ?, 'evaluated': ?}",
        "Parameters": [{"B": b"k"}, {"B": b"m"}, {"N": "7"}],
    }


def test_a_replacement_sets_present_attributes_removes_absent_ones_and_compares_the_read_ones() -> None:
    assert replace("t", ITEM, "key", ["wake_up", "p"], {"evaluated": {"N": "5"}}) == {
        "Statement": 'UPDATE "t" SET "members"=? SET "evaluated"=? REMOVE "wake_up" REMOVE "p"'
        ' WHERE "key"=? AND "evaluated"=?',
        "Parameters": [{"B": b"m"}, {"N": "7"}, {"B": b"k"}, {"N": "5"}],
    }


def test_the_local_stack_parses_the_sent_statements() -> None:
    assert read(insert("t", ITEM)) == ("t", ITEM, (), None)
    sent = read(replace("t", ITEM, "key", ["wake_up"], {"evaluated": {"N": "5"}}))
    changed = {name: value for name, value in ITEM.items() if name != "key"}
    assert sent == ("t", changed, ("wake_up",), {"key": {"B": b"k"}, "evaluated": {"N": "5"}})
    assert sent.item == ITEM
    with pytest.raises(ValueError, match="not a statement of this project"):
        read({"Statement": 'DELETE FROM "t"', "Parameters": []})


def test_statements_go_in_calls_of_25(slept: list[float]) -> None:
    table = Table({})
    assert execute(table, 60) == ([], [])
    assert [len(call) for call in table.calls] == [STATEMENTS_A_CALL, STATEMENTS_A_CALL, 10]
    assert slept == []


@pytest.mark.parametrize("code", sorted(PASSING))
def test_only_a_statement_with_a_transient_error_is_repeated_after_a_pause(code: str, slept: list[float]) -> None:
    table = Table({1: [code], 3: [code, code]})
    assert execute(table, 5) == ([], [])
    assert table.calls == [[0, 1, 2, 3, 4], [1, 3], [3]]
    assert len(slept) == 2


@pytest.mark.parametrize("code", sorted(REFUSED))
def test_a_refused_statement_is_named_and_not_repeated(code: str) -> None:
    table = Table({1: [code], 3: ["ThrottlingError", code]})
    assert execute(table, 5) == ([1, 3], [])
    assert table.calls == [[0, 1, 2, 3, 4], [3]]


def test_a_statement_that_fails_in_every_retry_is_named(slept: list[float]) -> None:
    table = Table({2: ["TransactionConflict"] * 99})
    assert execute(table, 4) == ([], [2])
    assert len(table.calls) == ATTEMPTS
    assert len(slept) == ATTEMPTS - 1


@pytest.mark.parametrize(
    "code", ["AccessDenied", "ValidationError", "ResourceNotFound", "ItemCollectionSizeLimitExceeded", "Unheard-of"]
)
def test_any_other_error_is_raised(code: str) -> None:
    with pytest.raises(ClientError, match=code):
        execute(Table({1: [code]}), 3)


def test_every_code_that_dynamodb_documents_is_treated() -> None:
    codes = Session().get_service_model("dynamodb").shape_for("BatchStatementErrorCodeEnum").enum  # type: ignore[attr-defined]
    raised = {"AccessDenied", "ValidationError", "ResourceNotFound", "ItemCollectionSizeLimitExceeded"}
    assert set(codes) == REFUSED | PASSING | raised


def test_an_answer_that_lacks_a_statement_is_an_error() -> None:
    class Short(Table):
        def batch_execute_statement(self, Statements: list[dict[str, Any]]) -> dict[str, Any]:  # noqa: N803
            return {"Responses": [{}] * (len(Statements) - 1)}

    with pytest.raises(ValueError, match="shorter"):
        execute(Short({}), 3)
