"""Passes the messages of queues to functions, in batches as Lambda does."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kanon.dynamo.batches import chunks
from kanon.local.build import Storage
from kanon.local.functions import FunctionError
from kanon.local.template import REGION, Template, TemplateError

PAYLOAD_LIMIT = 6 * 1024 * 1024  # bytes of an event, Lambda's quota
_MOST_AT_ONCE = 10  # messages of one call of SQS


@dataclass(frozen=True)
class MappedQueue:
    """A queue whose messages Lambda passes to a function.

    Attributes:
        function: its name.
        queue_arn: the queue.
        batch_size: the largest number of messages in one event.
        window: seconds from the first message of a batch until it is passed on, unless it is full earlier.
    """

    function: str
    queue_arn: str
    batch_size: int
    window: float

    def record(self, message: Any) -> dict[str, Any]:
        """A message as boto3 returned it, as the function sees it."""
        return {
            "messageId": message["MessageId"],
            "receiptHandle": message["ReceiptHandle"],
            "body": message["Body"],
            "attributes": message.get("Attributes", {}),
            "messageAttributes": {},
            "md5OfBody": message["MD5OfBody"],
            "eventSource": "aws:sqs",
            "eventSourceARN": self.queue_arn,
            "awsRegion": REGION,
        }

    def failed(self, result: Any, records: Sequence[dict[str, Any]]) -> set[str]:
        """Ids of the messages that stay in the queue after this answer."""
        names = {failure["itemIdentifier"] for failure in (result or {}).get("batchItemFailures") or []}
        everything = {record["messageId"] for record in records}
        if not names <= everything:
            return everything  # an unknown id makes the whole batch fail
        return names


def queue_mappings(template: Template, functions: Mapping[str, str]) -> list[MappedQueue]:
    """The event source mappings; ``functions``: name by ARN."""
    names = {**functions, **{arn.rpartition(":")[2]: name for arn, name in functions.items()}}
    mapped = []
    for _, resource in template.every_resource("AWS::Lambda::EventSourceMapping"):
        properties = resource.properties
        if "ReportBatchItemFailures" not in properties.get("FunctionResponseTypes", []):
            raise TemplateError(f"{resource.logical_id} needs FunctionResponseTypes: [ReportBatchItemFailures]")
        function, queue = names[properties["FunctionName"]], properties["EventSourceArn"]
        window = float(properties.get("MaximumBatchingWindowInSeconds", 0))
        mapped.append(MappedQueue(function, queue, int(properties["BatchSize"]), window))
    return mapped


@dataclass
class WaitingBatch:
    """Messages that wait for their event: the function's records, their sizes in bytes, and the start of the window."""

    records: list[dict[str, Any]] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    since: float = 0.0

    def add(self, record: dict[str, Any], now: float) -> None:
        """Take another record; the first one begins the window."""
        if not self.records:
            self.since = now
        self.records.append(record)
        self.sizes.append(len(json.dumps(record)) + 1)

    def full(self, most: int) -> bool:
        """Whether it is full for one event."""
        return len(self.records) >= most or sum(self.sizes) >= PAYLOAD_LIMIT

    def take(self) -> list[dict[str, Any]]:
        """The records of one event, at least one. Records beyond its size stay."""
        number = max(1, sum(total < PAYLOAD_LIMIT for total in itertools.accumulate(self.sizes)))
        taken, self.records = self.records[:number], self.records[number:]
        self.sizes = self.sizes[number:]
        return taken


class Queues:
    """The queues of a stack that have a mapping to a function.

    ``invoke`` calls a function by its name with an event. If it raises a ``FunctionError``, ``failures`` gets it.
    """

    def __init__(
        self,
        mappings: Sequence[MappedQueue],
        storage: Storage,
        client: Any,
        now: Callable[[], float],
        invoke: Callable[[str, Any], Any],
        failures: list[FunctionError],
    ) -> None:
        self._batches = [(mapping, WaitingBatch()) for mapping in mappings]
        self._storage = storage
        self._sqs = client
        self._now = now
        self._invoke = invoke
        self._failures = failures
        self._hidden: list[tuple[float, str, str]] = []  # visible again at, queue url, receipt

    @property
    def idle(self) -> bool:
        """Whether no message is hidden or waits for its batch."""
        return not self._hidden and not any(batch.records for _, batch in self._batches)

    def clear(self) -> None:
        """Forget hidden messages and those that wait for their batch."""
        self._hidden.clear()
        self._batches = [(mapping, WaitingBatch()) for mapping, _ in self._batches]

    def due(self) -> float:
        """When the next message becomes visible again or a batch's window ends, unix seconds; infinity if never."""
        ends = (batch.since + mapping.window for mapping, batch in self._batches if batch.records)
        return min([*ends, *(visible for visible, _, _ in self._hidden)], default=float("inf"))

    def run(self, flush: bool = False) -> None:
        """Pass every visible message to its function until none is visible; a batch waits for the end of its window.

        Args:
            flush: end all windows now.
        """
        now = self._now()
        for visible, url, receipt in [hidden for hidden in self._hidden if hidden[0] <= now]:
            self._hidden.remove((visible, url, receipt))
            self._sqs.change_message_visibility(QueueUrl=url, ReceiptHandle=receipt, VisibilityTimeout=0)
        quiet = False
        while not quiet:
            quiet = not sum(self._pass_on(mapping, batch, flush) for mapping, batch in self._batches)

    def _pass_on(self, mapping: MappedQueue, batch: WaitingBatch, flush: bool) -> bool:
        """Pass on at most one event of one queue; false if there is none."""
        url = self._storage.queue_urls[mapping.queue_arn]
        self._receive(mapping, batch, url)
        ended = flush or self._now() >= batch.since + mapping.window
        if not batch.records or not (ended or batch.full(mapping.batch_size)):
            return False
        records = batch.take()
        try:
            failed = mapping.failed(self._invoke(mapping.function, {"Records": records}), records)
        except FunctionError as error:
            self._failures.append(error)
            failed = {record["messageId"] for record in records}
        visible = self._now() + self._storage.visibility[mapping.queue_arn]
        done: list[dict[str, str]] = []
        for record in records:
            if record["messageId"] in failed:
                self._hidden.append((visible, url, record["receiptHandle"]))
            else:
                done.append({"Id": str(len(done)), "ReceiptHandle": record["receiptHandle"]})
        for some in chunks(done, _MOST_AT_ONCE):
            self._sqs.delete_message_batch(QueueUrl=url, Entries=some)
        return True

    def _receive(self, mapping: MappedQueue, batch: WaitingBatch, url: str) -> None:
        """Receive visible messages until the batch is full."""
        now = self._now()
        while not batch.full(mapping.batch_size):
            messages = self._sqs.receive_message(
                QueueUrl=url,
                MaxNumberOfMessages=min(_MOST_AT_ONCE, mapping.batch_size - len(batch.records)),
                MessageSystemAttributeNames=["All"],
                VisibilityTimeout=43200,  # it returns by the stack's clock, see _hidden
            ).get("Messages", [])
            if not messages:
                return
            for message in messages:
                batch.add(mapping.record(message), now)
