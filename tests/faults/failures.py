"""The ways in which an AWS call can fail, each a behaviour from the n-th call of a worker on."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from botocore.awsrequest import AWSResponse
from botocore.exceptions import EndpointConnectionError, ReadTimeoutError
from moto.core.botocore_stubber import MockRawResponse

from kanon.aws import CONFIG, OBJECTS
from tests.faults.fault_injector import Call

BATCHES = ("dynamodb.BatchWriteItem", "dynamodb.BatchGetItem")
READS, WRITES = ("s3.GetObject",), ("s3.PutObject",)
DELETES = ("s3.DeleteObjects",)
SENDS = ("sqs.SendMessageBatch",)
TRANSACTIONS = ("dynamodb.TransactWriteItems",)
SINGLE_WRITES = ("dynamodb.PutItem", "dynamodb.UpdateItem", "dynamodb.DeleteItem")

PassTime = Callable[[float], None]
Action = Callable[[Call, PassTime], AWSResponse]


def _read_timeout(call: Call) -> float:
    """Seconds after which a client of the service stops waiting for an answer."""
    return float((OBJECTS if call.on_objects else CONFIG).read_timeout)


# What can happen to one request


def never_arrives(call: Call, _: PassTime) -> AWSResponse:
    """It never arrives."""
    raise EndpointConnectionError(endpoint_url=call.request.url)


def timed_out(call: Call, pass_time: PassTime) -> AWSResponse:
    """It never arrives, which shows only after the time for an answer."""
    pass_time(_read_timeout(call))
    raise ReadTimeoutError(endpoint_url=call.request.url)


def unanswered(call: Call, pass_time: PassTime) -> AWSResponse:
    """It takes effect, its answer is lost."""
    call.send()
    pass_time(_read_timeout(call))
    raise ReadTimeoutError(endpoint_url=call.request.url)


def dies_before(call: Call, _: PassTime) -> AWSResponse:
    """The worker dies with the request unsent."""
    call.die()


def dies_after(call: Call, _: PassTime) -> AWSResponse:
    """The worker dies once the request took effect."""
    call.send()
    call.die()


def error(code: str, status: int = 400) -> Action:
    """The service answers with an error and does nothing."""

    def action(call: Call, _: PassTime) -> AWSResponse:
        return call.error(status, code)

    return action


def error_after_effect(call: Call, _: PassTime) -> AWSResponse:
    """The service did it and answers with an internal error."""
    call.send()
    return call.error(500, "InternalServerError")


def unprocessed(taken: Callable[[int], int]) -> Action:
    """Of n requests of a batch ``taken(n)`` are done; DynamoDB returns the others as unprocessed."""

    def action(call: Call, _: PassTime) -> AWSResponse:
        ((table, asked),) = call.body["RequestItems"].items()
        writes = isinstance(asked, list)
        entries = asked if writes else asked["Keys"]
        # The later half first: the unprocessed requests must not always be the last ones.
        cut = len(entries) - taken(len(entries))
        left, done = entries[:cut], entries[cut:]
        answered: dict[str, Any] = {} if writes else {"Responses": {table: []}}
        if done:
            part = {**call.body, "RequestItems": {table: done if writes else {**asked, "Keys": done}}}
            answered = json.loads(call.send(part).content)
        name = "UnprocessedItems" if writes else "UnprocessedKeys"
        answered[name] = {table: left if writes else {**asked, "Keys": left}} if left else {}
        return call.answer(200, answered)

    return action


def not_taken(taken: Callable[[int], int]) -> Action:
    """Of n messages the queue accepts ``taken(n)`` and names the others as failed, in an answer that is not an
    error."""

    def action(call: Call, _: PassTime) -> AWSResponse:
        entries = call.body["Entries"]
        cut = len(entries) - taken(len(entries))
        left, done = entries[:cut], entries[cut:]
        answered = json.loads(call.send({**call.body, "Entries": done}).content) if done else {"Successful": []}
        failed = {"SenderFault": False, "Code": "InternalError", "Message": "on purpose"}
        answered["Failed"] = [{"Id": entry["Id"], **failed} for entry in left]
        return call.answer(200, answered)

    return action


def cut_short(call: Call, _: PassTime) -> AWSResponse:
    """The connection breaks off in the middle of an object."""
    whole = call.send()
    return AWSResponse(
        whole.url, whole.status_code, whole.headers, MockRawResponse(whole.content[: half(len(whole.content))])
    )


def not_deleted(call: Call, _: PassTime) -> AWSResponse:
    """Half of the objects are deleted, and the others named as failed, in an answer that is not an error."""
    parts = re.findall(rb"<Object>.*?</Object>", call.request.body, re.DOTALL)
    left, done = parts[: half(len(parts))], parts[half(len(parts)) :]
    call.send(b"<Delete>" + b"".join(done) + b"<Quiet>true</Quiet></Delete>")
    names = (re.search("<Key>.*</Key>", part.decode()) for part in left)
    errors = "".join(f"<Error>{name[0]}<Code>InternalError</Code></Error>" for name in names if name)
    raw = MockRawResponse(f"<DeleteResult>{errors}</DeleteResult>")
    return AWSResponse(call.request.url, 200, {"Content-Type": "application/xml"}, raw)


def cancelled(reason: str) -> Action:
    """A transaction is refused because of its last item."""

    def action(call: Call, _: PassTime) -> AWSResponse:
        others = len(call.body["TransactItems"]) - 1
        error = {"__type": "com.amazonaws#TransactionCanceledException", "message": "on purpose"}
        return call.answer(400, {**error, "CancellationReasons": [{"Code": "None"}] * others + [{"Code": reason}]})

    return action


def half(n: int) -> int:
    """The smaller half of a batch."""
    return n // 2


def partly_done(part: Action, then: Action) -> Action:
    """A part of a batch is done, then ``then``."""

    def action(call: Call, pass_time: PassTime) -> AWSResponse:
        part(call, pass_time)
        return then(call, pass_time)

    return action


# The requests to which it happens, counted from the n-th call


@dataclass(frozen=True)
class Failure:
    """An action and how long it lasts.

    ``lasts``: "once" (the first attempt only: botocore repeats it), "call" (all attempts of one
    call), "operation" (every call of the kind until the worker gives up), "outage" (every call).
    ``only``: the operations to which it can happen; empty for all.
    """

    name: str
    action: Action
    lasts: str
    only: tuple[str, ...] = ()

    def __str__(self) -> str:
        return self.name

    def applies_to(self, operation: str) -> bool:
        """Whether a call of this kind can fail in this way."""
        return not self.only or operation in self.only

    def at(self, number: int, operation: str, pass_time: PassTime) -> "FailsAt":
        """The behaviour that fails from the ``number``-th call on, which is an ``operation``."""
        return FailsAt(self, number, operation, pass_time)


@dataclass
class FailsAt:
    """A behaviour: undisturbed up to a call."""

    failure: Failure
    number: int
    operation: str
    pass_time: PassTime
    met: int = 0

    def __call__(self, call: Call) -> AWSResponse:
        if not self._hits(call):
            return call.send()
        self.met += 1
        return self.failure.action(call, self.pass_time)

    def _hits(self, call: Call) -> bool:
        match self.failure.lasts:
            case "once":
                return call.number == self.number and call.attempt == 1
            case "call":
                return call.number == self.number
            case "operation":
                return call.number >= self.number and call.operation == self.operation
            case _:
                return call.number >= self.number


FAILURES = (
    Failure("refused-once", never_arrives, "once"),
    Failure("refused", never_arrives, "call"),
    Failure("timeout-once", timed_out, "once"),
    Failure("timeout", timed_out, "call"),
    Failure("unanswered-once", unanswered, "once"),
    Failure("unanswered", unanswered, "call"),
    Failure("outage", never_arrives, "outage"),
    Failure("outage-after-effect", unanswered, "outage"),
    Failure("throughput-exceeded-once", error("ProvisionedThroughputExceededException"), "once"),
    Failure("throughput-exceeded", error("ProvisionedThroughputExceededException"), "operation"),
    Failure("throttled-once", error("ThrottlingException"), "once"),
    Failure("throttled", error("ThrottlingException"), "operation"),
    Failure("request-limit", error("RequestLimitExceeded"), "call"),
    Failure("internal-error", error("InternalServerError", 500), "call"),
    Failure("internal-error-after-effect", error_after_effect, "call"),
    Failure("unavailable", error("ServiceUnavailable", 503), "operation"),
    Failure("access-denied", error("AccessDeniedException"), "call"),
    Failure("dies-before", dies_before, "call"),
    Failure("dies-after", dies_after, "call"),
    Failure("half-unprocessed-once", unprocessed(half), "once", only=BATCHES),
    Failure("one-processed-each-time", unprocessed(lambda n: 1), "operation", only=BATCHES),
    Failure("nothing-processed", unprocessed(lambda n: 0), "operation", only=BATCHES),
    Failure("half-done-unanswered", partly_done(unprocessed(half), timed_out), "call", only=BATCHES),
    Failure("half-done-dies", partly_done(unprocessed(half), dies_before), "call", only=BATCHES),
)

QUEUE_FAILURES = (
    Failure("half-not-taken", not_taken(half), "call", only=SENDS),
    Failure("one-taken-each-time", not_taken(lambda n: 1), "operation", only=SENDS),
    Failure("none-taken", not_taken(lambda n: 0), "operation", only=SENDS),
    Failure("half-taken-unanswered", partly_done(not_taken(half), timed_out), "call", only=SENDS),
    Failure("half-taken-dies", partly_done(not_taken(half), dies_before), "call", only=SENDS),
)
"""What can happen besides to a batch of messages."""

OBJECT_FAILURES = (
    Failure("slow-down-once", error("SlowDown", 503), "once"),
    Failure("slow-down", error("SlowDown", 503), "operation"),
    Failure("cut-short", cut_short, "call", only=READS),
    Failure("conflict-once", error("ConditionalRequestConflict", 409), "once", only=WRITES),
    Failure("conflict", error("ConditionalRequestConflict", 409), "call", only=WRITES),
    Failure("half-not-deleted", not_deleted, "call", only=DELETES),
)
"""What can happen besides to an object."""

TRANSACTION_FAILURES = (
    Failure("transaction-in-conflict-once", cancelled("TransactionConflict"), "once", only=TRANSACTIONS),
    Failure("transaction-in-conflict", cancelled("TransactionConflict"), "operation", only=TRANSACTIONS),
    Failure("transaction-throttled", cancelled("ThrottlingError"), "call", only=TRANSACTIONS),
    Failure("write-in-conflict", error("TransactionConflictException"), "call", only=SINGLE_WRITES),
)
"""What can happen besides to a transaction, and to a write of an item that is in one."""
