"""The allowed output of a function: the fields of its log lines, metrics, responses and errors.

Each check takes an output and yields its problems. Numbers are allowed by field and not by value, because a count of a
set may look like any other number. In free text (reasons and messages) a number must follow a word that says what it
is.
"""

import ast
import binascii
import json
import re
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

from kanon.gateway.binary_http import LEAST_PADDED
from kanon.gateway.oblivious import CONFIG_BYTES, KEYS_PATH, KEYS_TYPE, RESPONSE_TYPE
from kanon.http.answers import STATUS_NAMES
from tests.paths import ROOT

Problems = Iterator[str]
NONCE_AND_TAG = 32 + 16

# ----------------------------------------------------------------------------------------------- log lines


@cache
def messages() -> frozenset[str]:
    """The messages of the service's own log calls: constants, so that they contain no value."""
    found = set()
    for path in [*(ROOT / "functions").rglob("*.py"), *(ROOT / "shared").rglob("*.py")]:
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if "logger." in text else ():
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="logger"), attr=level), args=[said, *_]):
                    assert isinstance(said, ast.Constant), f"{path}:{node.lineno}: logger.{level} says no constant"
                    found.add(said.value)
    return frozenset(found)


def matches(pattern: str) -> Callable[[Any], bool]:
    """Whether a value is a text of this form."""
    expression = re.compile(pattern)
    return lambda value: isinstance(value, str) and expression.fullmatch(value) is not None


FREE = {"reason"}
"""Log fields of free text."""

LOG_FIELDS: dict[str, Callable[[Any], bool]] = {
    "level": matches("INFO|WARNING|ERROR|CRITICAL"),
    "location": matches(r"[\w.<>]+:\d+"),
    "message": lambda value: value in messages(),
    "timestamp": matches(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}[+-]\d{4}"),
    "service": matches(
        r"join|evaluate|query|collect|store|jobs|decrypt|aggregate|rotate|gateway|list|released|issuer|kanon-\d+"
    ),
    "cold_start": lambda value: isinstance(value, bool),
    "function_name": matches(r"[\w-]+"),
    "function_memory_size": lambda value: str(value) in ("128", "512", "1769", "3008"),
    "function_arn": matches(r"arn[\w:-]*"),
    "function_request_id": matches(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|r"),
    "kind": matches(r"[A-Z][A-Za-z]+"),
    "stage": matches(r"none|map|remap|[A-Z]+"),
    "operation": matches(r"[A-Z][A-Za-z]+"),
    "code": matches(r"[A-Z][A-Za-z.]+"),
    "place": matches(r"[\w.<>]+:\d+|unknown"),
    "problems": lambda value: all(
        re.fullmatch(r"((slot|hop|body|job|stage|shard|part): )?[a-z_]+", problem) for problem in value
    ),
    "slot": lambda value: type(value) is int and 0 <= value < 256,
    "reason": lambda value: isinstance(value, str),
}


def wrong_log(entry: Mapping[str, Any]) -> Problems:
    """A line of the logger."""
    for name, value in entry.items():
        if name not in LOG_FIELDS:
            yield f"a log line has a field {name!r}"
        elif not LOG_FIELDS[name](value):
            yield f"a log line says {value!r} as its {name}"
        elif name in FREE:
            yield from wrong_text(value)


# ------------------------------------------------------------------------------------------------ messages


def _below(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value < most


_TEXT = matches(r"[^\n]+")
_STAGE = matches("map|remap")
_PARTS = _below(10_000)

MESSAGES: dict[str, list[dict[str, Callable[[Any], bool]]]] = {
    "Queue": [{"slot": _below(256), "hop": _below(256)}],
    "Maps": [{"job": _TEXT, "stage": _STAGE, "shard": _below(1000)}],
    "Stages": [{"job": _TEXT}, {"job": _TEXT, "part": lambda value: value is None or _PARTS(value)}],
    "Arrivals": [
        {
            "kind": matches("report"),
            "api": matches(r"[a-z-]+"),
            "scheduled_report_time": _below(2**40),
            "shared_info": _TEXT,
            "payload": matches(r"[A-Za-z0-9+/]+=*"),
            "key_id": _TEXT,
        },
        {"kind": matches("event"), "body": lambda value: isinstance(value, str), "received": _below(2**40)},
    ],
}
"""The forms of a message, by the last part of the queue's name."""


def wrong_message(queue: str, body: str) -> Problems:
    """A message to a queue: it names a part of the work or holds a received report, and nothing else."""
    message = json.loads(body)
    if not any(
        set(message) == set(form) and all(form[name](value) for name, value in message.items())
        for form in MESSAGES.get(queue, [])
    ):
        yield f"a message to the queue {queue} says {message}"


# ------------------------------------------------------------------------------------------------- metrics


def _one_of(*values: float) -> Callable[[float, int], bool]:
    return lambda value, period: value in values


def _whole(most: float) -> Callable[[float, int], bool]:
    return lambda value, period: 0 <= value <= most and value == int(value)


# Name: function, unit, values; of joins those of a minute of one environment, and lateness in whole steps.
METRICS: dict[str, tuple[str, str, Callable[[float, int], bool]]] = {
    "JoinsAccepted": ("join", "Count", _whole(1e9)),
    "JoinsRefused": ("join", "Count", _whole(1e9)),
    "RequestsRejected": ("join query collect jobs gateway released issuer", "Count", _whole(1e9)),
    "RelayedCallsFailed": ("gateway", "Count", _one_of(1)),
    "ListsBehind": ("list", "Count", _whole(1e6)),
    "ListsWithUnopenedValues": ("list", "Count", _one_of(1)),
    "ListsRead": ("released", "Count", _one_of(1)),
    "ListRequestsFailed": ("released", "Count", _one_of(1)),
    "EnrolmentsAnswered": ("issuer", "Count", _one_of(1)),
    "EnrolmentsFailed": ("issuer", "Count", _one_of(1)),
    "QueriesAnswered": ("query", "Count", _one_of(1)),
    "QueriesRefused": ("query", "Count", _one_of(1)),
    "TrueSetsLoadTime": ("query", "Milliseconds", _whole(60_000)),
    "SlotsFailed": ("evaluate", "Count", _one_of(0, 1)),
    "EvaluationStopped": ("evaluate", "Count", _one_of(1)),
    "SlotsWithRowsSkipped": ("evaluate", "Count", _one_of(1)),
    "StepsBehind": ("evaluate", "Count", _whole(1e6)),
    "ReportsAccepted": ("collect", "Count", _one_of(1)),
    "ReportsRefused": ("collect", "Count", _one_of(1)),
    "KeysRefused": ("collect", "Count", _one_of(0, 1)),
    "JobRequestsRefused": ("jobs", "Count", _one_of(0, 1)),
    "PublicationsFailed": ("aggregate", "Count", _one_of(1)),
    "DebugReports": ("collect", "Count", _one_of(1)),
    "ObjectsStored": ("store", "Count", _whole(10_000)),
    "JobsFinished": ("decrypt aggregate", "Count", _one_of(1)),
    "JobsRefused": ("decrypt aggregate", "Count", _one_of(1)),
    "ShardsFailed": ("decrypt", "Count", _one_of(0, 1)),
    "StagesFailed": ("aggregate", "Count", _one_of(0, 1)),
    "StuckJobs": ("aggregate", "Count", _whole(1e6)),
    "BudgetTableReplaced": ("aggregate rotate", "Count", _one_of(0, 1)),
    "KeysMissing": ("rotate", "Count", _one_of(0, 1)),
    "PublishLag": ("evaluate", "Seconds", lambda value, period: value >= 0 and value % period == 0),
}


def wrong_metric(entry: Mapping[str, Any], function: str, period: int) -> Problems:
    """A line in CloudWatch's embedded metric format."""
    (described,) = entry["_aws"]["CloudWatchMetrics"]
    if described["Dimensions"] != [["service"]] or not LOG_FIELDS["service"](entry.get("service")):
        yield f"metrics have the dimensions {described['Dimensions']}, the service {entry.get('service')!r}"
    units = {metric["Name"]: metric["Unit"] for metric in described["Metrics"]}
    for name in entry.keys() - {"_aws", "service"}:
        allowed, unit, value = METRICS.get(name, ("", "", _one_of()))
        if function not in allowed.split() or units.get(name) != unit:
            yield f"{function} has a metric {name!r} in {units.get(name)}"
        elif not all(value(number, period) for number in entry[name]):
            yield f"{name} takes the values {entry[name]}"


# --------------------------------------------------------------------------------------------- free text

# A number in a reason or a message stands behind, or before, a word that says what it is: a step, a slot, a limit of
# the interface, a place in what was sent.
_NUMBERS = re.compile(
    r"(?:steps?|slots?|begins? at step|format|key|types? and keys|at least|at most|less than|than or equal to|line|"
    r"column|char|1 to|of 1|larger than|not|are|refused|of)[ ]\d+\b"
    r"|\b\d+ (?:slots|types|bytes|items?|characters?|hashes|messages|of|to 64)\b"
    r"|(?:send|give) 0\.1 or 1\.0|above 0|0 to 100|2\^64|1e-12 up to [\d.e-]+"
    r"|such as (?:2026-01-31(?:T00:00:00Z)?|\"10\" or \"1e-8\")"
    r"|(?:over|after) \d\d days|(?:more than|at most) [\d,]+ (?:reports|MiB|objects|units|rows|shards|keys)|256 MiB"
    r"|pattern '[^']*'|/v1/|noise.key[/ ][\w-]+|(?i:utf-8)|base64(?:url)?|\d+ of \d+ messages"
)
_NUMBER = re.compile(r"\d+")


def wrong_text(text: str) -> Problems:
    """A reason or message: no number without its word."""
    left = _NUMBERS.sub("", text)
    if _NUMBER.search(left):
        yield f"a number that could be a count: {text!r}"


# --------------------------------------------------------------------------------------------- answers

HEADERS: dict[str, Callable[[Any], bool]] = {
    "Content-Type": matches(r"application/json|application/octet-stream|text/(html|csv); charset=utf-8"),
    "Cache-Control": matches(r"no-store|((public|private), )?max-age=\d+(, immutable)?"),
    "Vary": matches("Accept"),
    "ETag": matches(r'"[0-9a-f]{32}"'),
    "Link": matches(r'</v1/types/[^/]+/released\?after=\d+\.[0-9a-f]{64}&limit=\d+>; rel="next"'),
    "Retry-After": matches("5"),
    "Content-Security-Policy": matches(r"default-src 'none'; [a-z' ;-]+"),
}
_FIELD = re.compile(
    r"body|type|set|epoch|request|recovery|query(?:\.after|\.limit)?|after|limit|step|prefix|(?:client|shortClientIdentifier|value|name|presentation(?:\.[a-z]+)?|joins|(?:setsForType|sets)[\w.]*)"
)
_MOMENT = matches(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")


def wrong_error(error: Any, code: int, fields: re.Pattern[str] = _FIELD) -> Problems:
    """The one form of an error; ``fields`` are the names of fields that it may say."""
    if set(error) != {"code", "status", "message", "details"} or error["code"] != code:
        yield f"an error has the form {error}"
        return
    if error["status"] != STATUS_NAMES.get(code):
        yield f"an error has the status {error['status']!r}"
    for problem in error["details"]:
        if set(problem) != {"field", "reason"} or not fields.fullmatch(problem["field"]):
            yield f"an error has the detail {problem}"
        yield from wrong_text(str(problem.get("reason")))
    # The message repeats the first field, which names places in what was sent.
    yield from wrong_text(re.sub(rf"^(?:{fields.pattern}): ", "", error["message"]))


def wrong_headers(headers: Mapping[str, str]) -> Problems:
    """The headers of an answer."""
    for name, value in headers.items():
        if name not in HEADERS or not HEADERS[name](value):
            yield f"an answer has the header {name}: {value}"


def wrong_answer(method: str, path: str, asked: str, status: int, headers: Mapping[str, str], body: str) -> Problems:
    """The answer to a request whose body was ``asked``: a success has only the described fields."""
    yield from wrong_headers(headers)
    if status != 200:
        answer = json.loads(body)
        yield from wrong_error(answer.get("error", {}), status) if set(answer) == {"error"} else [f"an error is {body}"]
    elif path == "/v1:batchJoin":
        for result in json.loads(body).get("results"):
            if result:
                yield from wrong_error(result["error"], result["error"]["code"])
        if set(json.loads(body)) != {"results"}:
            yield f"a batch is answered {body}"
    elif method == "POST" and path.endswith(":join"):
        if body != "{}":
            yield f"a join is answered {body}"
    elif path in ("/v1:query", "/v1:batchQuery", "/v1:validateHashes"):
        yield from _wrong_query(json.loads(body), asked)
    elif found := _LIST.fullmatch(path):
        yield from _wrong_list(found[1], headers["Content-Type"], body)
    elif "/sets/" in path:
        yield from _wrong_status(json.loads(body), "kAnonymous")
        if not isinstance(json.loads(body)["kAnonymous"], bool):
            yield f"a set is answered {body}"


_LIST = re.compile(r"/v1/types/[^/]+/(released|ranges)(?:/\d+/(?:[01]+|all))?")


def _wrong_list(what: str, kind: str, body: str) -> Problems:
    """A list has values that the crowd shares, and the steps since which it does: nothing of a client or a count."""
    if kind != "application/json":
        return  # CSV and range files have the same values
    fields = {"type", "step", "nextUpdate", *(("values", "next") if what == "released" else ("prefixBits", "count"))}
    answer = json.loads(body)
    if set(answer) != fields or any(set(each) != {"value", "since"} for each in answer.get("values", ())):
        yield f"a list is answered {body}"


def wrong_relayed_answer(path: str, result: Mapping[str, Any]) -> Problems:
    """The outer answer of the gateway: its key, a padded answer that is encrypted, or an error about the request."""
    headers, status = dict(result["headers"]), result["statusCode"]
    if status != 200:
        yield from wrong_headers(headers)
        yield from wrong_error(json.loads(result["body"])["error"], status)
        return
    kind, cached = headers.pop("Content-Type", None), headers.pop("Cache-Control", "")
    size = len(binascii.a2b_base64(result["body"])) if result["isBase64Encoded"] else 0
    if path == KEYS_PATH:
        right = (kind, size) == (KEYS_TYPE, CONFIG_BYTES) and re.fullmatch(r"public, max-age=\d+", cached)
    else:
        size -= NONCE_AND_TAG
        right = (kind, cached) == (RESPONSE_TYPE, "no-store") and size >= LEAST_PADDED and size & (size - 1) == 0
    if not right or headers:
        yield f"the gateway answers {path} with {size} bytes of {kind}, {cached}, {headers}"


def _wrong_query(answer: Any, asked: str) -> Problems:
    yield from _wrong_status(answer, "kAnonymousSets")
    for entry in answer["kAnonymousSets"]:
        if set(entry) != {"type", "hashes"}:
            yield f"a query is answered {entry}"
        for text in [entry["type"], *entry["hashes"]]:
            if text not in asked and json.dumps(text)[1:-1] not in asked:
                yield f"a query is told {text!r}, which was not asked"


def _wrong_status(answer: Any, told: str) -> Problems:
    if set(answer) != {told, "step", "nextUpdate"} or not _MOMENT(answer["nextUpdate"]):
        yield f"a query is answered {answer}"
    if answer["step"] is not None and type(answer["step"]) is not int:
        yield f"a query is answered the step {answer['step']!r}"
