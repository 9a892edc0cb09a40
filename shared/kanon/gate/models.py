"""The bodies and answers of the HTTP interface (docs/reference/api.md), as real clients send and expect them."""

import binascii
import re
from collections.abc import Collection
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    PlainValidator,
    StrictInt,
    StrictStr,
    WithJsonSchema,
    field_validator,
    model_validator,
)

from kanon.errors import meant
from kanon.gate.mechanism.bounds import PRIOR, UNIT, guarantee
from kanon.gate.mechanism.parameters import WATCHED_SETS
from kanon.gate.types import TYPE_NAME, Type
from kanon.http.answers import AnswerBody, Body, ErrorAnswer, Problem, error_answer, unknown_field, wrong_field
from kanon.http.encoding import BASE64, decode_base64
from kanon.noise import bound as noise
from kanon.noise.exact import round_up

MOST_HASHES = 1_000
MOST_JOINS = 500
JOIN_PATH = re.compile(r"/v1/types/[^/]+/sets/[^/]+:join")
CREDENTIALS = "/v1/credentials"
"""The path at which accounts enrol."""
ISSUER_KEYS = f"{CREDENTIALS}/keys"
MOST_CLIENT_BYTES = 256
MOST_VALUE_BYTES = 512
SHORT_CLIENTS = 1 << 53  # every JSON parser represents smaller integers exactly
PRESENTATION = "^[A-Za-z0-9_-]{347}$"
"""260 bytes in base64url."""


def _decode_hash(text: Any) -> tuple[str, bytes]:
    return text, decode_base64(text)


NOT_LOGGED = error_answer(503, "this join is not in the log; repeat it after the time in Retry-After")

TypeName = Annotated[StrictStr, Field(pattern=TYPE_NAME)]


def _whole(number: Any) -> Any:
    """JSON does not distinguish 2.0 from the integer 2."""
    return int(number) if isinstance(number, float) and number.is_integer() else number


_BASE64_SCHEMA = WithJsonSchema({"type": "string", "pattern": BASE64})
SetId = Annotated[bytes, BeforeValidator(decode_base64), _BASE64_SCHEMA]
Hash = Annotated[tuple[str, bytes], PlainValidator(_decode_hash), _BASE64_SCHEMA]
"""A set in a query: its text, which the answer repeats unchanged, and the set id that the text encodes."""


# Both are optional; neither is nullable.
ClientId = Annotated[
    Annotated[StrictStr, Field(min_length=1, max_length=MOST_CLIENT_BYTES)] | None,
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": MOST_CLIENT_BYTES}),
]
ShortClientId = Annotated[
    Annotated[StrictInt, BeforeValidator(_whole), Field(ge=0, lt=SHORT_CLIENTS)] | None,
    WithJsonSchema({"type": "integer", "minimum": 0, "exclusiveMaximum": SHORT_CLIENTS}),
]
ListedValue = Annotated[
    Annotated[StrictStr, Field(min_length=1, max_length=MOST_VALUE_BYTES)] | None,
    WithJsonSchema(
        {
            "type": "string",
            "minLength": 1,
            "maxLength": MOST_VALUE_BYTES,
            "description": "Of a listed type only: the value, 1 to 512 bytes of UTF-8; the set is its SHA-256",
        }
    ),
]


def _one_client(example: dict[str, Any], schema: dict[str, Any]) -> None:
    """Describe a join as one of two objects, each with its way to name the client. Generated clients type them so."""
    ways = {"client": "Client", "shortClientIdentifier": "ShortClient", "presentation": "Presentation"}
    ways = {way: name for way, name in ways.items() if way in schema["properties"]}
    objects = [
        {
            "title": f"{schema['title']}Of{name}",
            "type": "object",
            "additionalProperties": False,
            "properties": {key: value for key, value in schema["properties"].items() if key not in ways.keys() - {way}},
            "required": [*schema.get("required", []), way],
        }
        for way, name in ways.items()
    ]
    for key in ("type", "properties", "required", "additionalProperties"):
        schema.pop(key, None)
    schema |= {"oneOf": objects, "examples": [example]}


def unknown_type(name: str, types: Collection[str], field: str = "type") -> ErrorAnswer:
    """The answer to a request that names a type which the deployment does not have. Types are public."""
    message = f"no such type{meant(name, types)}: GET /v1/types lists those of this deployment"
    return error_answer(404, message, Problem(field=field, reason="unknown"))


def wrong_value(type_: Type, set_id: bytes, value: str | None) -> ErrorAnswer | None:
    """The answer to a join whose value is missing, not that of its set, or not for this type; None if it is right."""
    if type_.listed and value is None:
        reason = "this type is listed: give the value of the set"
    elif value is not None and not type_.listed:
        reason = "this type is not listed: leave out the value"
    elif value is not None and set_id != sha256(value.encode()).digest():
        reason = "the set must be the SHA-256 of the value, in base64url"
    else:
        return None
    return wrong_field("value", reason)


def wrong_client(type_: Type, body: "JoinBody") -> ErrorAnswer | None:
    """The answer to a join that names its client in another way than its type does; None if it is right."""
    if type_.credential == (body.presentation is not None):
        return None
    if type_.credential:
        reason = "this type needs a credential: give a presentation, and no client"
    else:
        reason = unknown_field("presentation", ["client", "shortClientIdentifier", "value", "name"])
    return wrong_field("presentation", reason)


def not_in_batches(type_: Type) -> ErrorAnswer | None:
    """The answer to a join in a batch whose type needs a credential: a batch would link sets. None for another type."""
    if not type_.credential:
        return None
    return wrong_field("type", "this type needs a credential: join one set a request")


class JoiningClient(Body):
    """The client that joins: an opaque ``client`` of 1 to 256 bytes, or the short number that some browsers use."""

    client: ClientId = None
    short_client_identifier: ShortClientId = None
    value: ListedValue = None

    @field_validator("value")
    @classmethod
    def _short(cls, value: str | None) -> str | None:
        if value is None:
            raise ValueError("must be a text")
        if len(value.encode()) > MOST_VALUE_BYTES:
            raise ValueError(f"must be at most {MOST_VALUE_BYTES} bytes of UTF-8")
        return value

    @field_validator("client")
    @classmethod
    def _few_bytes(cls, client: str | None) -> str | None:
        if client is not None and len(client.encode()) > MOST_CLIENT_BYTES:
            raise ValueError(f"must be at most {MOST_CLIENT_BYTES} bytes of UTF-8")
        return client

    @model_validator(mode="after")
    def _one_client(self) -> Self:
        given = self.model_fields_set & {"client", "short_client_identifier", "presentation"}
        if len(given) != 1 or getattr(self, given.pop()) is None:
            raise ValueError("give exactly one of client and shortClientIdentifier")
        return self


def _decode_presentation(text: Any) -> bytes:
    if not isinstance(text, str) or not re.fullmatch(PRESENTATION, text):
        raise ValueError("must be base64url of 260 bytes without padding")
    return binascii.a2b_base64(text.translate({45: 43, 95: 47}) + "=")


class Presentation(Body):
    """Of a type that needs a credential: shows one for this set and step, and not whose it is."""

    model_config = ConfigDict(title="ShownCredential")

    epoch: Annotated[StrictInt, Field(ge=0, lt=1 << 32, description="The week of the credential's key")]
    step: Annotated[StrictInt, Field(ge=0, lt=1 << 53, description="The step of the join")]
    proof: Annotated[
        bytes, BeforeValidator(_decode_presentation), WithJsonSchema({"type": "string", "pattern": PRESENTATION})
    ]


class JoinBody(JoiningClient):
    """The client that joins: an opaque ``client`` of 1 to 256 bytes, or the short number that some browsers use.

    A type with ``credential`` takes a ``presentation`` instead.
    """

    model_config = ConfigDict(json_schema_extra=partial(_one_client, {"client": "client-1"}))

    presentation: Annotated[Presentation | None, WithJsonSchema(Presentation.model_json_schema())] = None
    name: Annotated[
        str, Field(description="Ignored: Chromium repeats the type and the set here. Those of the path count")
    ] = ""


class BatchedJoin(JoiningClient):
    """One join of a batch."""

    model_config = ConfigDict(
        json_schema_extra=partial(_one_client, {"type": "fledge", "set": "c2V0IG9uZQ", "client": "client-1"})
    )

    type: TypeName
    set: SetId


class BatchJoinBody(Body):
    """Up to 500 joins, each validated independently: an invalid join does not affect the others."""

    joins: Annotated[
        list[Annotated[Any, WithJsonSchema(BatchedJoin.model_json_schema())]],
        Field(min_length=1, max_length=MOST_JOINS),
    ]


class Hashes(Body):
    """Sets of one type: ids of 1 to 64 bytes as base64, in the standard or the URL-safe alphabet."""

    model_config = ConfigDict(
        json_schema_extra={"examples": [{"type": "fledge", "hashes": ["c2V0IG9uZQ", "c2V0IHR3bw=="]}]}
    )

    type: TypeName
    hashes: Annotated[list[Hash], Field(max_length=MOST_HASHES), FailFast()]  # strangers may send many wrong ones


def _as_list(entries: Any) -> Any:
    """Some clients send one object where a list is expected."""
    return [entries] if isinstance(entries, dict) else entries


def _few_hashes(entries: list[Hashes]) -> list[Hashes]:
    if sum(len(entry.hashes) for entry in entries) > MOST_HASHES:
        raise ValueError(f"ask at most {MOST_HASHES} hashes at once; split the request")
    return entries


Asked = Annotated[list[Hashes], Field(max_length=MOST_HASHES), AfterValidator(_few_hashes), BeforeValidator(_as_list)]


def too_many_hashes(field: str, most: int) -> ErrorAnswer:
    """The answer to a query without a signature for more hashes than ``most``."""
    return wrong_field(field, f"ask at most {most} hashes at once; split the request, or sign it and call batchQuery")


class QueryBody(Body):
    """The sets to query, by type: up to 1,000 hashes in total, or what the deployment allows without a signature."""

    sets_for_type: Asked


class ValidateHashesBody(Body):
    """The same query in the format of Bidding and Auction servers."""

    sets: Asked


class JoinAnswer(AnswerBody):
    """An empty object: the join is in the log."""

    model_config = ConfigDict(extra="forbid")


class BatchJoinAnswer(AnswerBody):
    """One entry for every join, in order: an empty object, or its error."""

    results: list[ErrorAnswer | JoinAnswer]  # in this order: generated clients read any object as the empty one


Step = Annotated[
    int | None, Field(description="The step of the answer; null before the first evaluation, or if no set is queried")
]
NextUpdate = Annotated[
    str,
    Field(
        description="No answer changes before this time",
        examples=["2026-07-01T10:30:00Z"],
        json_schema_extra={"format": "date-time"},
    ),
]


def utc_text(unix: int) -> str:
    """A time in seconds of Unix, as ``NextUpdate`` has it."""
    return datetime.fromtimestamp(unix, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class HashesAnswer(AnswerBody):
    """The hashes of the query that are k-anonymous."""

    type: str
    hashes: list[str]


class QueryAnswer(AnswerBody):
    """One entry for every type in the query, in order."""

    k_anonymous_sets: list[HashesAnswer]
    step: Step
    next_update: NextUpdate


class SetAnswer(AnswerBody):
    """The status of one set."""

    k_anonymous: bool
    step: Step
    next_update: NextUpdate


class Bound(AnswerBody):
    """A differential privacy bound: (``epsilon``, ``delta``)."""

    epsilon: float
    delta: float

    @classmethod
    def of(cls, bound: noise.Bound, **more: Any) -> Self:
        """The two numbers as floats, rounded up."""
        return cls(epsilon=round_up(bound.epsilon), delta=round_up(bound.delta), **more)


class WatchedSets(Bound):
    """The bound for a client that watches ``sets`` sets before it joins one."""

    sets: int


class Bounds(AnswerBody):
    """Bounds for one join, by the adversary each one holds against."""

    paper: Annotated[
        Bound | None,
        Field(description="The paper's bound, for a join whose step is fixed beforehand; null where it does not apply"),
    ]
    interval_aware: Annotated[
        Bound, Field(description="The bound proved by this project, for a join whose step is fixed beforehand")
    ]
    watched: Annotated[
        Bound, Field(description="The same for a join whose step may depend on the set's answers during a year")
    ]
    watched_sets: Annotated[
        WatchedSets,
        Field(description="The same for a join whose set and step may depend on a year of all their answers"),
    ]


class Rejoining(Bound):
    """The bound for a client that keeps joining one set for ``days`` days."""

    days: int


class Posterior(AnswerBody):
    """An observer who assigned the probability ``prior`` to a join can assign at most ``atMost`` afterwards."""

    prior: float
    at_most: float


class TypeAnswer(AnswerBody):
    """A type: its parameters, its privacy bounds, and the counts whose answer is certain."""

    type: str
    k: Annotated[int, Field(description="The threshold, in clients")]
    window: Annotated[int, Field(description="For how many steps a join counts")]
    period: Annotated[int, Field(description="The length of a step in seconds")]
    profile: Annotated[str | None, Field(description="null for a type with its own noise distributions")]
    restart: Annotated[str, Field(description="`grid` (the paper's) or `crossing`")]
    hold: Annotated[int | None, Field(description="For how many steps a status stays true; null on the grid")]
    epoch: Annotated[int | None, Field(description="A search ends with its epoch of so many steps; null on the grid")]
    client_bits: Annotated[int, Field(description="The length of a client token in bits")]
    listed: Annotated[bool, Field(description="Whether joins carry their value, and the shared values are published")]
    credential: Annotated[bool, Field(description="Whether a join needs an anonymous credential, and no client")]
    unit: Annotated[str, Field(description="What the bounds protect")]
    bounds: Bounds
    rejoining: list[Rejoining]
    posterior: Posterior
    never_true_below: Annotated[int, Field(description="Below this count a set cannot become true")]
    surely_true_from: Annotated[int, Field(description="From this count on it becomes true")]

    @classmethod
    def of(cls, type_: Type) -> Self:
        """The public description of a type."""
        p, proved = type_.parameters, guarantee(type_.parameters)
        return cls(
            type=type_.name,
            k=p.k,
            window=p.window,
            period=p.period,
            profile=type_.profile,
            restart="grid" if p.restart is None else "crossing",
            hold=None if p.restart is None else p.restart.hold,
            epoch=None if p.restart is None else p.restart.epoch,
            client_bits=p.client_bits,
            listed=type_.listed,
            credential=type_.credential,
            unit=UNIT,
            bounds=Bounds(
                paper=None if proved.paper is None else Bound.of(proved.paper),
                interval_aware=Bound.of(proved.interval_aware),
                watched=Bound.of(proved.watched),
                watched_sets=WatchedSets.of(proved.watched_sets, sets=WATCHED_SETS),
            ),
            rejoining=[Rejoining.of(bound, days=days) for days, bound in proved.rejoining],
            posterior=Posterior(prior=float(PRIOR), at_most=round_up(proved.posterior)),
            never_true_below=p.never_true_below,
            surely_true_from=p.surely_true_from,
        )


class TypesAnswer(AnswerBody):
    """The types of this deployment."""

    types: list[TypeAnswer]
