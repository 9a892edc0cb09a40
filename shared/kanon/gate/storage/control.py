"""Control: how far each slot is evaluated, who is at it, and the fingerprints of what must never change."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kanon.dynamo.conditions import unless_refused
from kanon.dynamo.limits import MOST_EXPRESSION_BYTES
from kanon.errors import ConfigurationError, FingerprintMismatchError, LeaseLostError

if TYPE_CHECKING:
    from mypy_boto3_dynamodb import DynamoDBClient

RELEASE = "REMOVE lease_until, lease_holder"

IF_FREE_OR_EXPIRED_OR_OWN = "attribute_not_exists(lease_until) OR lease_until < :now OR lease_holder = :holder"
IF_STILL_HELD = "lease_holder = :holder"
IF_NEVER_MARKED = "attribute_not_exists(evaluated_through)"
IF_MARKED_AT = "evaluated_through = :before"


@dataclass(frozen=True)
class Mark:
    """The progress of a slot.

    ``evaluated_through`` is None before the first step; ``resume_after`` is the last set key done of the
    step after it, if a worker ran out of time inside.
    """

    evaluated_through: int | None
    resume_after: bytes | None


@dataclass(frozen=True)
class Progress:
    """A slot as an operator sees it; ``lease_until`` (Unix s) is None if nobody has the lease."""

    slot: int
    evaluated_through: int | None
    lease_until: float | None


class Control:
    """Marks, leases and fingerprints."""

    def __init__(self, client: "DynamoDBClient", table: str) -> None:
        self._client = client
        self._table = table

    def lease(self, slot: int, holder: str, now: float, until: float) -> Mark | None:
        """Take the lease of a slot; None if another worker holds it.

        A holder may take its own lease again. Otherwise a lost response would lock the slot:

            worker A   lease ------> stored        (the response is lost)
            worker A   lease (retried by the client) ------> its own name is there: it holds the lease
            worker B                    lease ------> refused until ``until``

        A lease that has expired may be taken by anyone. Its old holder may still be writing:

            worker A   lease .. evaluates .. paused .................. advance ------> refused: the mark has moved
            worker B                             lease .. advance ---> stored

        Both write the same rows, since noise and counts are functions of the log; only one of them moves the mark.
        """
        answer = self._update(
            _slot(slot),
            "SET lease_until = :until, lease_holder = :holder",
            IF_FREE_OR_EXPIRED_OR_OWN,
            {":until": {"N": str(until)}, ":holder": {"S": holder}, ":now": {"N": str(now)}},
            ReturnValues="ALL_NEW",
        )
        if answer is None:
            return None
        item = answer["Attributes"]
        mark = int(item["evaluated_through"]["N"]) if "evaluated_through" in item else None
        resumes = "resume_step" in item and mark is not None and int(item["resume_step"]["N"]) == mark + 1
        return Mark(mark, bytes(item["resume_after"]["B"]) if resumes else None)

    def release(self, slot: int, holder: str, resume: tuple[int, bytes] | None = None) -> None:
        """Give the lease back, if it still is this holder's; ``resume`` is (step, last set key done)."""
        values: dict[str, Any] = {":holder": {"S": holder}}
        update = RELEASE
        if resume is not None:
            update += " SET resume_step = :step, resume_after = :after"
            values |= {":step": {"N": str(resume[0])}, ":after": {"B": resume[1]}}
        self._update(_slot(slot), update, IF_STILL_HELD, values)

    def advance(self, slot: int, before: int | None, step: int, leaving: str | None = None) -> None:
        """Move the mark of a slot from ``before`` (None: it has none) to ``step``.

        A holder that is ``leaving`` gives its lease back in the same write.

        Raises:
            LeaseLostError: the mark is elsewhere, or the lease is no longer that holder's.
        """
        update, condition = "SET evaluated_through = :step", IF_NEVER_MARKED
        values: dict[str, Any] = {":step": {"N": str(step)}}
        if before is not None:
            condition = IF_MARKED_AT
            values[":before"] = {"N": str(before)}
        if leaving is not None:
            update += f" {RELEASE}"
            condition += f" AND {IF_STILL_HELD}"
            values[":holder"] = {"S": leaving}
        if self._update(_slot(slot), update, condition, values) is None:
            raise LeaseLostError(f"slot {slot} was taken or moved by another worker; it goes on from there")

    def evaluated_through(self, slot: int) -> int | None:
        """The mark of a slot, strongly consistent; None before its first step."""
        answer = self._client.get_item(TableName=self._table, Key={"name": {"S": _slot(slot)}}, ConsistentRead=True)
        mark = answer.get("Item", {}).get("evaluated_through")
        return None if mark is None else int(mark["N"])

    def progress(self) -> Iterator[Progress]:
        """Every slot that was ever leased, strongly consistent, in no order."""
        pages = self._client.get_paginator("scan").paginate(
            TableName=self._table,
            ConsistentRead=True,
            FilterExpression="begins_with(#name, :slot)",
            ExpressionAttributeNames={"#name": "name"},
            ExpressionAttributeValues={":slot": {"S": _slot("")}},
        )
        for item in (item for page in pages for item in page["Items"]):
            yield Progress(
                int(item["name"]["S"].removeprefix(_slot(""))),
                int(item["evaluated_through"]["N"]) if "evaluated_through" in item else None,
                float(item["lease_until"]["N"]) if "lease_until" in item else None,
            )

    def recorded(self, owner: str) -> dict[str, str]:
        """The fingerprints recorded for a function, strongly consistent."""
        answer = self._client.get_item(
            TableName=self._table, Key={"name": {"S": f"function#{owner}"}}, ConsistentRead=True
        )
        return {name: value["S"] for name, value in answer.get("Item", {}).items() if name != "name"}

    def check(self, owner: str, fingerprints: Mapping[str, str]) -> None:
        """Record fingerprints that are new and compare those that are known, in one conditional update.

        Raises:
            ConfigurationError: they are too many for one update.
            FingerprintMismatchError: something that must never change has changed.
        """
        names = {f"#n{i}": name for i, name in enumerate(fingerprints)}
        values: dict[str, Any] = {f":v{i}": {"S": value} for i, value in enumerate(fingerprints.values())}
        update = "SET " + ", ".join(f"#n{i} = :v{i}" for i in range(len(names)))
        condition = " AND ".join(f"(attribute_not_exists(#n{i}) OR #n{i} = :v{i})" for i in range(len(names)))
        if max(len(update), len(condition)) > MOST_EXPRESSION_BYTES:
            raise ConfigurationError(
                f"{len(names)} types and keys are more than one deployment can hold; move some types to another one"
            )
        changed = self._update(
            f"function#{owner}",
            update,
            condition,
            values,
            ExpressionAttributeNames=names,
            ReturnValuesOnConditionCheckFailure="ALL_OLD",
        )
        if changed is None:
            raise FingerprintMismatchError(
                f"{owner}: a type's parameters, a key, the outage allowance or the number of slots differ from what"
                f" this deployment started with; restore them, and give changed parameters a new type name"
            )

    def _update(
        self, name: str, update: str, condition: str, values: dict[str, Any], **more: Any
    ) -> Mapping[str, Any] | None:
        """The answer of the update, or None if its condition failed."""
        return unless_refused(
            self._client.update_item,
            TableName=self._table,
            Key={"name": {"S": name}},
            UpdateExpression=update,
            ConditionExpression=condition,
            ExpressionAttributeValues=values,
            **more,
        )


def _slot(slot: int | str) -> str:
    return f"slot#{slot}"
