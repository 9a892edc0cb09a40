"""The HTTP routes of joins. They read no status and no other join."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from aws_lambda_powertools.event_handler import APIGatewayHttpResolver, Response
from pydantic import ValidationError

from kanon import clock
from kanon.errors import ConfigurationError
from kanon.gate.joining import Join, Joining
from kanon.gate.models import (
    NOT_LOGGED,
    BatchedJoin,
    BatchJoinAnswer,
    BatchJoinBody,
    JoinAnswer,
    JoinBody,
    JoiningClient,
    Presentation,
    not_in_batches,
    unknown_type,
    wrong_client,
    wrong_value,
)
from kanon.gate.paths import SetInPath, TypeInPath
from kanon.gate.types import Type
from kanon.http.answers import ErrorAnswer
from kanon.http.bodies import RequestError
from kanon.http.edge import (
    RETRY_AFTER,
    SIGNED_OR_TOKEN,
    SIGNED_OR_TOKEN_OR_OPEN,
    described,
    invalid,
    json_answer,
)


@dataclass(frozen=True)
class JoinRoutes:
    """The routes of joins.

    Attributes:
        types: the types of the deployment by name.
        joining: provides the use case.
        count: is told the accepted ones and the number of the well-formed joins of each request.
        admit: checks a presentation for a set of a type at a time, and returns its tag; for types that need it.
    """

    types: Mapping[str, Type]
    joining: Callable[[], Joining]
    count: Callable[[int, int], None]
    admit: Callable[[str, bytes, Presentation, float], bytes] | None = None

    def add_to(self, app: APIGatewayHttpResolver) -> None:
        """Let a resolver answer these routes."""
        app.post(
            "/v1/types/<type>/sets/<set>:join",
            summary="Join a set",
            operation_id="join",
            responses=described("The join is in the log", 400, 401, 403, 404, 413, 415, 503),
            security=SIGNED_OR_TOKEN_OR_OPEN,
        )(self.join)
        app.post(
            "/v1:batchJoin",
            summary="Join many sets at once",
            operation_id="batchJoin",
            responses=described("The result of each join", 400, 401, 403, 413, 415, 503, partly_later=True),
            security=SIGNED_OR_TOKEN,
        )(self.batch_join)

    def join(self, type_name: TypeInPath, set_id: SetInPath, body: JoinBody) -> Response[JoinAnswer]:
        """Log that a client joined a set. Repeating a join within a step changes nothing."""
        if type_name not in self.types:
            raise RequestError(unknown_type(type_name, self.types))
        type_, now = self.types[type_name], clock.now()
        if wrong := wrong_value(type_, set_id, body.value) or wrong_client(type_, body):
            raise RequestError(wrong)
        if body.presentation is None:
            join = _join(type_name, set_id, body)
        else:
            join = self._presented(type_name, set_id, body.presentation, body.value, now)
        accepted = 0
        try:
            self.joining().join(join, now)
            accepted = 1
        finally:
            self.count(accepted, 1)
        return json_answer(JoinAnswer())

    def _presented(
        self, type_name: str, set_id: bytes, presentation: Presentation, value: str | None, now: float
    ) -> Join:
        """The join of whoever presents a credential: the client is its tag, of which only the token is kept."""
        if self.admit is None:
            raise ConfigurationError(f"type {type_name!r} needs credentials, which this service does not check")
        tag = self.admit(type_name, set_id, presentation, now)
        return Join(type_name, set_id, "arc", tag, None if value is None else value.encode())

    def batch_join(self, body: BatchJoinBody) -> Response[BatchJoinAnswer]:
        """Log up to 500 joins independently; ``results`` has one entry for every join, in order."""
        now = clock.now()
        read = [self._read(entry) for entry in body.joins]
        joins = [entry for entry in read if isinstance(entry, Join)]
        logged: list[bool] = []
        try:
            logged = self.joining().join_all(joins, now)
        finally:
            self.count(sum(logged), len(joins))
        results = [JoinAnswer() if isinstance(entry, Join) else entry for entry in read]
        places = [place for place, entry in enumerate(read) if isinstance(entry, Join)]
        for place, stored in zip(places, logged, strict=True):
            if not stored:
                results[place] = NOT_LOGGED
        headers = None if all(logged) else {"Retry-After": RETRY_AFTER}
        return json_answer(BatchJoinAnswer(results=results), headers)

    def _read(self, entry: Any) -> Join | ErrorAnswer:
        """The join of one entry of a batch, or its error."""
        try:
            body = BatchedJoin.model_validate(entry)
        except ValidationError as error:
            return invalid(error.errors(include_url=False, include_input=False))
        if body.type not in self.types:
            return unknown_type(body.type, self.types)
        type_ = self.types[body.type]
        if wrong := not_in_batches(type_) or wrong_value(type_, body.set, body.value):
            return wrong
        return _join(body.type, body.set, body)


def _join(type_name: str, set_id: bytes, body: JoiningClient) -> Join:
    value = None if body.value is None else body.value.encode()
    if body.client is not None:
        return Join(type_name, set_id, "client", body.client.encode(), value)
    return Join(type_name, set_id, "short", str(body.short_client_identifier).encode(), value)
