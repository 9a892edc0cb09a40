"""Uses the client that openapi-python-client generated: python use_client.py URL, and the wire vector as its input."""

import json
import sys
from http import HTTPStatus
from typing import TypeVar

from generated import AuthenticatedClient
from generated.api.gate import batch_join, get_set, join, list_types, query
from generated.api.reports import get_budget, public_keys, report_kanon
from generated.models import (
    BatchedJoinOfClient,
    BatchedJoinOfShortClient,
    BatchJoinAnswer,
    BatchJoinBody,
    BudgetAnswer,
    ErrorAnswer,
    Hashes,
    JoinAnswer,
    JoinBodyOfClient,
    JoinBodyOfShortClient,
    PublicKeysAnswer,
    QueryAnswer,
    QueryBody,
    ReportBody,
    SetAnswer,
    TypesAnswer,
)

Answer = TypeVar("Answer")


def got(kind: type[Answer], found: object) -> Answer:
    """The answer, or an error that no test expects."""
    if not isinstance(found, kind):
        raise TypeError(repr(found))
    return found


def main() -> None:
    """Make every kind of call, and print what was answered."""
    vector = json.load(sys.stdin)
    set_ = vector["set"]["id"]
    client = AuthenticatedClient(base_url=sys.argv[1], token="of-the-issuer")
    types = got(TypesAnswer, list_types.sync(client=client)).types

    for who in (JoinBodyOfClient(client="client-1"), JoinBodyOfShortClient(short_client_identifier=7)):
        got(JoinAnswer, join.sync("fledge", set_, client=client, body=who))
    joins: list[BatchedJoinOfClient | BatchedJoinOfShortClient] = [
        BatchedJoinOfClient(type_="fledge", set_=set_, client=f"client-{number}") for number in range(3)
    ]
    joins.append(BatchedJoinOfShortClient(type_="fledgee", set_=set_, short_client_identifier=1))
    batch = got(BatchJoinAnswer, batch_join.sync(client=client, body=BatchJoinBody(joins=joins)))

    asked = QueryBody(sets_for_type=[Hashes(type_="fledge", hashes=[set_])])
    answer = got(QueryAnswer, query.sync(client=client, body=asked))
    status = got(SetAnswer, get_set.sync("fledge", set_, client=client))
    wrong = QueryBody(sets_for_type=[Hashes(type_="fledgee", hashes=[])])
    refused = got(ErrorAnswer, query.sync(client=client, body=wrong))

    keys = got(PublicKeysAnswer, public_keys.sync(client=client)).keys
    body = ReportBody.from_dict(json.loads(vector["report"]["body"]))
    taken: HTTPStatus = report_kanon.sync_detailed(client=client, body=body).status_code
    unit = {"api": "kanon", "version": "1.0", "reporting_origin": "https://report.example", "day": "2026-11-20"}
    budget = got(BudgetAnswer, get_budget.sync(client=client, **unit))

    print(
        json.dumps(
            {
                "types": [[one.type_, one.k, one.bounds.watched.epsilon] for one in types],
                "results": [one.error.message if isinstance(one, ErrorAnswer) else "joined" for one in batch.results],
                "sets": [one.to_dict() for one in answer.k_anonymous_sets],
                "nextUpdate": answer.to_dict()["nextUpdate"],
                "kAnonymous": status.k_anonymous,
                "refused": refused.error.message,
                "keys": [one.id for one in keys],
                "taken": int(taken),
                "budget": len(budget.hours),
            }
        )
    )


main()
