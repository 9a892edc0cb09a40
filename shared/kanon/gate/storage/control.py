"""Control: the mark and the lease of each slot, and the fingerprints of immutable values."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from kanon.dynamo.fingerprints import Fingerprints
from kanon.errors import LeaseLostError

RELEASE = "REMOVE lease_until, lease_holder"
KEEP_PLACE = "SET resume_step = :step, resume_after = :after"

IF_FREE_OR_EXPIRED_OR_OWN = "attribute_not_exists(lease_until) OR lease_until < :now OR lease_holder = :holder"
IF_STILL_HELD = "lease_holder = :holder"
IF_NEVER_MARKED = "attribute_not_exists(evaluated_through)"
IF_MARKED_AT = "evaluated_through = :before"


@dataclass(frozen=True)
class Mark:
    """The progress of a slot.

    ``evaluated_through`` is the last evaluated step, or None before the first one. If a worker ran out of time
    inside the next step, ``resume_after`` is the last set key that it committed there. ``stamped`` is whether Members
    and Statuses had stamps when the mark was written. Earlier versions, which a rollback may bring back, write none.
    """

    evaluated_through: int | None
    resume_after: bytes | None
    stamped: bool = True


@dataclass(frozen=True)
class Progress:
    """A slot as an operator sees it; ``lease_until`` (Unix s) is None if nobody holds the lease. See :class:`Mark`."""

    slot: int
    evaluated_through: int | None
    lease_until: float | None
    stamped: bool = True


class Control(Fingerprints):
    """Marks, leases and fingerprints."""

    changed = (
        "a type's parameters, a key, the outage allowance, the publish delay, MaxStale or the number of slots differ"
        " from what this deployment started with; restore them, give changed parameters a new type name, and let a new"
        " entry of Slots begin at least two steps ahead"
    )
    too_many = "types and keys are more than one deployment can hold; move some types to another deployment"

    def lease(self, slot: int, holder: str, now: float, until: float) -> Mark | None:
        """Take the lease of a slot and return its mark; None if another worker holds the lease.

        A holder may take its own lease again. Otherwise a lost response would lock the slot:

            worker A   lease ------> stored        (the response is lost)
            worker A   lease (retried by the client) ------> its own name is there: it holds the lease
            worker B                    lease ------> refused until ``until``

        Any worker may take an expired lease. The old holder may still be writing:

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
        mark = _mark_in(item)
        resumes = "resume_step" in item and mark is not None and int(item["resume_step"]["N"]) == mark + 1
        return Mark(mark, bytes(item["resume_after"]["B"]) if resumes else None, _is_stamped(item))

    def release(self, slot: int, holder: str, resume: tuple[int, bytes] | None = None) -> None:
        """Release the lease if this holder still has it; ``resume`` is (step, last set key committed)."""
        update = RELEASE if resume is None else f"{RELEASE} {KEEP_PLACE}"
        self._update(_slot(slot), update, IF_STILL_HELD, {":holder": {"S": holder}, **_place(resume)})

    def keep_place(self, slot: int, holder: str, place: tuple[int, bytes]) -> None:
        """Store where the next run continues if this holder dies: (step, last set key committed)."""
        self._update(_slot(slot), KEEP_PLACE, IF_STILL_HELD, {":holder": {"S": holder}, **_place(place)})

    def forget_place(self, slot: int, holder: str) -> None:
        """Let the next run continue at the beginning of its step.

        An operator's command that replaces Members calls it.
        """
        self._update(_slot(slot), "REMOVE resume_step, resume_after", IF_STILL_HELD, {":holder": {"S": holder}})

    def advance(self, slot: int, before: int | None, step: int, leaving: str | None = None) -> None:
        """Move the mark of a slot from ``before`` (None: it has none) to ``step``. Stamp Members and Statuses before.

        ``leaving`` names a holder whose lease is released in the same write.

        Raises:
            LeaseLostError: the mark is not at ``before``, or ``leaving`` no longer holds the lease.
        """
        update, condition = "SET evaluated_through = :step, stamped = :step", IF_NEVER_MARKED
        values: dict[str, Any] = {":step": {"N": str(step)}}
        if before is not None:
            condition = IF_MARKED_AT
            values[":before"] = {"N": str(before)}
        if leaving is not None:
            update += f" {RELEASE}"
            condition += f" AND {IF_STILL_HELD}"
            values[":holder"] = {"S": leaving}
        if self._update(_slot(slot), update, condition, values) is None:
            raise LeaseLostError(f"another worker took slot {slot} or moved its mark, and continues there")

    def evaluated_through(self, slot: int) -> int | None:
        """The mark of a slot, strongly consistent; None before its first step."""
        return _mark_in(self._item(_slot(slot)))

    def progress(self) -> Iterator[Progress]:
        """Every slot that was ever leased, strongly consistent, in no particular order."""
        for item in self._scan(
            FilterExpression="begins_with(#name, :slot)",
            ExpressionAttributeNames={"#name": "name"},
            ExpressionAttributeValues={":slot": {"S": _slot("")}},
        ):
            slot = int(item["name"]["S"].removeprefix(_slot("")))
            until = float(item["lease_until"]["N"]) if "lease_until" in item else None
            yield Progress(slot, _mark_in(item), until, _is_stamped(item))


def _mark_in(item: Mapping[str, Any]) -> int | None:
    """The mark in a slot's item."""
    return int(item["evaluated_through"]["N"]) if "evaluated_through" in item else None


def _is_stamped(item: Mapping[str, Any]) -> bool:
    """Whether the mark was written with stamps."""
    return bool(item.get("evaluated_through") == item.get("stamped"))


def _place(place: tuple[int, bytes] | None) -> dict[str, Any]:
    """The values of KEEP_PLACE."""
    return {} if place is None else {":step": {"N": str(place[0])}, ":after": {"B": place[1]}}


def _slot(slot: int | str) -> str:
    return f"slot#{slot}"
