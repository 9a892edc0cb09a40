"""Control: the row of each slot of each layout, the numbers of the types, and the fingerprints of immutable values.

Every lease of a slot raises its *run*. All writes of a worker are conditional on its run, so a late worker changes
nothing (docs/proofs/segments.md).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from kanon.dynamo.batches import Item
from kanon.dynamo.fingerprints import Fingerprints
from kanon.dynamo.tables import attribute
from kanon.dynamo.transactions import all_or_none
from kanon.errors import ConfigurationError, LeaseLostError
from kanon.gate.publishing import Horizon
from kanon.gate.slots import Layouts

LEASE = "SET lease_until = :until, lease_holder = :holder ADD run :one"
_LEASE = "lease_until, lease_holder"
RELEASE = f"REMOVE {_LEASE}"
IF_FREE_OR_EXPIRED_OR_OWN = "attribute_not_exists(lease_until) OR lease_until < :now OR lease_holder = :holder"
IF_CURRENT = "run = :run"
COMMIT_ATTEMPTS = 2
"""A commit must be over before the publish margin is: its tick was chosen before it."""
MOST_TYPES = 255
"""The number of a type is one byte of a join."""
_TYPES, _COMMANDS = "types", "commands"
_SLOT = "slot#"


class Place(NamedTuple):
    """A slot of a layout, which is named by its first step."""

    layout: int
    slot: int

    @property
    def folder(self) -> str:
        """The prefix of its objects."""
        return f"{self.layout}/{self.slot}/"

    def before(self, layouts: Layouts) -> "list[Place]":
        """The slots of the layout before, from which its first parts come."""
        slots = layouts.preceding(self.slot, self.layout)
        return [Place(layouts.at(self.layout - 1).from_step, slot) for slot in slots]


@dataclass(frozen=True)
class Progress:
    """What is recorded of the step after the mark.

    Attributes:
        base: the manifest on which it builds; several, with commas, in the first step of a layout.
        draft: the list of the parts decided.
        written: the number of crossings of the range decided last that are in Statuses.
    """

    base: str
    draft: str
    written: int


class Remaking(NamedTuple):
    """The true sets of some keys, while their object is made of more parts than a step may read.

    Attributes:
        manifest: the parts of which they were made; of no others.
        end: the first key, in hexadecimal, whose part was not read yet.
        name: the object.
    """

    manifest: str
    end: str
    name: str


@dataclass(frozen=True)
class SlotRow:
    """The row of a slot.

    Attributes:
        run: the number of the last lease.
        evaluated_through: the mark, the last evaluated step; None before the first one.
        manifest: the name of the list of its parts; None if it never had any.
        kept: the manifests from which a recovery may start, oldest first, that one included.
        progress: what is recorded of the next step.
        begun: the last step of which a part was recorded as decided; None if there is none.
        horizon: what readers see of the steps that this slot has evaluated.
        retired: whether all slots that continue it are visible, and its objects are not needed.
        lease_until: Unix s; None if nobody holds the lease.
        shown: the object of the sets that are true at the mark; None if it must be made of all parts.
        gathered: what was read of a step; it counts until the mark is there. None if no step took that long.
        remaking: what is made of the next ``shown``; None if nothing is.
    """

    run: int = 0
    evaluated_through: int | None = None
    manifest: str | None = None
    kept: tuple[str, ...] = ()
    progress: Progress | None = None
    begun: int | None = None
    horizon: Horizon | None = None
    retired: bool = False
    lease_until: float | None = None
    shown: str | None = None
    gathered: str | None = None
    remaking: Remaking | None = None


class Commit(NamedTuple):
    """What the commit of a step writes: see :class:`SlotRow`."""

    step: int
    manifest: str | None
    kept: Sequence[str]
    horizon: Horizon
    shown: str | None = None
    remaking: Remaking | None = None


class Control(Fingerprints):
    """The rows of slots, the numbers of types, and fingerprints."""

    changed = (
        "a type's parameters, a key, the outage allowance, the publish delay, MaxStale or the number of slots differ"
        " from what this deployment started with; restore them, give changed parameters a new type name, and let a new"
        " entry of Slots begin at least two steps ahead"
    )
    too_many = "types and keys are more than one deployment can hold; move some types to another deployment"

    def lease(self, place: Place, holder: str, now: float, until: float) -> SlotRow | None:
        """Take the lease of a slot, which raises its run. Returns its row; None if another worker holds the lease.

        A holder may take its own lease again. Otherwise a lost response would lock the slot:

            worker A   lease ------> stored        (the response is lost)
            worker A   lease (retried by the client) ------> its own name is there: it holds the lease, with a new run
            worker B                    lease ------> refused until ``until``

        Any worker may take an expired lease. What the old holder writes afterwards is refused: its run is over.
        """
        answer = self._update(
            _name(place),
            LEASE,
            IF_FREE_OR_EXPIRED_OR_OWN,
            {
                ":until": {"N": str(until)},
                ":holder": {"S": holder},
                ":now": {"N": str(now)},
                ":one": {"N": "1"},
            },
            ReturnValues="ALL_NEW",
        )
        return None if answer is None else _row(answer["Attributes"])

    def release(self, place: Place, run: int) -> None:
        """Release the lease if this run is the current one."""
        self._update(_name(place), RELEASE, IF_CURRENT, _values(run))

    def row(self, place: Place) -> SlotRow:
        """The row of a slot, strongly consistent."""
        return _row(self._item(_name(place)))

    def mark_of(self, slot: int, layouts: Layouts) -> int | None:
        """The last step that a slot has evaluated in any layout; None before its first one."""
        places = (Place(layout.from_step, slot) for layout in layouts.entries if slot < layout.slots)
        marks = (self.row(place).evaluated_through for place in places)
        return max((mark for mark in marks if mark is not None), default=None)

    def rows(self) -> Iterator[tuple[Place, SlotRow]]:
        """Every slot that was ever leased, strongly consistent, in no particular order."""
        for item in self._scan(
            FilterExpression="begins_with(#name, :slot)",
            ExpressionAttributeNames={"#name": "name"},
            ExpressionAttributeValues={":slot": {"S": _SLOT}},
        ):
            layout, slot = item["name"]["S"].removeprefix(_SLOT).split("#")
            yield Place(int(layout), int(slot)), _row(item)

    def record_decided(self, place: Place, run: int, step: int, progress: Progress) -> None:
        """Record parts of ``step`` as decided: from now on their crossings may be out.

        Raises:
            LeaseLostError: the run is over.
        """
        update = "SET basis = :basis, draft = :draft, written = :written, begun = :step"
        values = {**_progress(progress), ":step": {"N": str(step)}}
        # A recovery goes back to earlier steps, and `begun` stays.
        if self._update(_name(place), update, f"{IF_CURRENT} AND {_UNLESS_BEGUN}", _values(run, values)) is None:
            shorter = update.removesuffix(", begun = :step")
            del values[":step"]
            if self._update(_name(place), shorter, IF_CURRENT, _values(run, values)) is None:
                raise lost(place)

    def record_gathered(self, place: Place, run: int, name: str | None) -> None:
        """Record the list of what was read of the next step with joins; None: nothing that is there.

        Raises:
            LeaseLostError: the run is over.
        """
        update, values = "REMOVE gathered", dict[str, Any]()
        if name is not None:
            update, values = "SET gathered = :name", {":name": {"S": name}}
        if self._update(_name(place), update, IF_CURRENT, _values(run, values)) is None:
            raise lost(place)

    def fence(self, place: Place, run: int, written: int) -> dict[str, Any]:
        """The part of a transaction that stores the place among the crossings, if the run is current."""
        return self._part(place, "SET written = :written", IF_CURRENT, _values(run, {":written": {"N": str(written)}}))

    def commit(
        self, place: Place, run: int, before: SlotRow, commit: Commit, shows: Sequence[dict[str, Any]], *, leaving: bool
    ) -> None:
        """Move mark, manifest and horizon in one transaction, and clear the progress.

        Args:
            place: the slot.
            run: the run that has evaluated the step.
            before: the row as it was read: it must have the same mark and the same manifest.
            commit: what is written.
            shows: ways to move the horizon in Statuses, of which one applies; without any it does not move.
            leaving: whether the lease is released too.

        Raises:
            LeaseLostError: the run is over, or the mark or the manifest has moved.
            ConfigurationError: no way applies: Statuses is older than the row.
        """
        update, condition, values = _commit(before, commit)
        if leaving:
            update = update.replace(" REMOVE ", f" {RELEASE}, ", 1)
        own = self._part(place, update, f"{IF_CURRENT} AND {condition}", _values(run, values))
        for show in [[each] for each in shows] or [[]]:
            refused = all_or_none(self._client, [own, *show], COMMIT_ATTEMPTS)
            if refused is None:
                return
            if refused[0] is not None:
                raise lost(place)
        raise older_statuses(place)

    def restate(self, place: Place, run: int, step: int, kept: Sequence[str], progress: Progress | None = None) -> None:
        """Put other states in the place of those of a slot, and let its horizon and ``begun`` stay. For a command.

        The next step makes its object of true sets of all parts, and reads its joins anew.

        Args:
            place: the slot.
            run: the run of the command.
            step: the mark.
            kept: the manifests from which a recovery may start, oldest first; the newest is that of the mark.
            progress: what is decided of the next step.

        Raises:
            LeaseLostError: the run is over.
        """
        update = "SET evaluated_through = :step, kept = :kept, manifest = :manifest"
        values: dict[str, Any] = {
            ":step": {"N": str(step)},
            ":kept": {"L": [{"S": name} for name in kept]},
            ":manifest": {"S": kept[-1]},
        }
        if progress is None:
            update += " REMOVE shown, remaking, gathered, basis, draft, written"
        else:
            update += ", basis = :basis, draft = :draft, written = :written REMOVE shown, remaking, gathered"
            values |= _progress(progress)
        if self._update(_name(place), update, IF_CURRENT, _values(run, values)) is None:
            raise lost(place)

    def put_horizon(self, place: Place, run: int, horizon: Horizon, show: dict[str, Any]) -> None:
        """Write the horizon of a slot here and, with ``show``, in Statuses. For a command.

        Raises:
            LeaseLostError: the run is over.
        """
        own = self._part(place, "SET horizon = :horizon", IF_CURRENT, _values(run, {":horizon": _stored(horizon)}))
        if all_or_none(self._client, [own, show]) is not None:
            raise lost(place)

    def raise_run(self, place: Place, run: int, above: int) -> int:
        """A new run of a leased slot, later than ``above``: objects may have names of runs that Control has lost.

        Raises:
            LeaseLostError: the run is over.
        """
        new = max(run, above) + 1
        values = _values(run, {":new": {"N": str(new)}})
        if self._update(_name(place), "SET run = :new", IF_CURRENT, values) is None:
            raise lost(place)
        return new

    def begin_command(self) -> int:
        """The number of a new command. :meth:`retire` is refused if another one has begun since."""
        answer = self._client.update_item(
            TableName=self._table,
            Key={self.key_name: {self.key_type: _COMMANDS}},
            UpdateExpression="ADD latest :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
            ReturnValues="UPDATED_NEW",
        )
        return int(answer["Attributes"]["latest"]["N"])

    def retire(self, place: Place, command: int) -> bool:
        """Let nobody need the objects of a slot any more, and raise its run; False if another command has begun."""
        update = (
            f"SET retired = :true ADD run :one REMOVE manifest, kept, shown, remaking, basis, draft, written, {_LEASE}"
        )
        values = {":true": {"BOOL": True}, ":one": {"N": "1"}}
        own = self._part(place, update, "attribute_not_exists(retired)", values)
        check = {
            "TableName": self._table,
            "Key": {self.key_name: {self.key_type: _COMMANDS}},
            "ConditionExpression": "latest = :command",
            "ExpressionAttributeValues": {":command": {"N": str(command)}},
        }
        return all_or_none(self._client, [{"ConditionCheck": check}, own]) is None

    def type_numbers(self, names: Iterable[str]) -> dict[str, int]:
        """The number of each type that this deployment has ever had, with these; a number is never used again.

        Raises:
            ConfigurationError: they are too many.
        """
        while True:
            item = self._item(_TYPES)
            numbers = {name: int(number["N"]) for name, number in item.get("numbers", {"M": {}})["M"].items()}
            new = sorted(set(names) - numbers.keys())
            if not new:
                return numbers
            if len(numbers) + len(new) > MOST_TYPES:
                raise ConfigurationError(
                    f"a deployment has at most {MOST_TYPES} types in its life, retired ones included: use another one"
                )
            wanted = {**numbers, **{name: len(numbers) + at for at, name in enumerate(new, 1)}}
            values = {":new": {"M": {name: {"N": str(number)} for name, number in wanted.items()}}}
            if numbers:
                self._update(_TYPES, "SET numbers = :new", "numbers = :old", {**values, ":old": item["numbers"]})
            else:
                self._update(_TYPES, "SET numbers = :new", "attribute_not_exists(numbers)", values)

    def _part(self, place: Place, update: str, condition: str, values: dict[str, Any]) -> dict[str, Any]:
        return {
            "Update": {
                "TableName": self._table,
                "Key": {self.key_name: {self.key_type: _name(place)}},
                "UpdateExpression": update,
                "ConditionExpression": condition,
                "ExpressionAttributeValues": values,
            }
        }


_UNLESS_BEGUN = "(attribute_not_exists(begun) OR begun <= :step)"


def lost(place: Place) -> LeaseLostError:
    """The error of a worker whose run is over."""
    return LeaseLostError(f"another worker took slot {place.slot} or moved its mark, and continues there")


def older_statuses(place: Place) -> ConfigurationError:
    """The error if the horizon of a slot in Statuses is older than in its row."""
    return ConfigurationError(
        f"the table Statuses is older than the states of slot {place.slot}, because it was restored or emptied: begin a"
        f" new log generation with `kanon operate new-generation`"
    )


def _commit(before: SlotRow, commit: Commit) -> tuple[str, str, dict[str, Any]]:
    """The update of a commit, its condition and its values."""
    update = "SET evaluated_through = :step, kept = :kept, horizon = :horizon"
    values: dict[str, Any] = {
        ":step": {"N": str(commit.step)},
        ":kept": {"L": [{"S": name} for name in commit.kept]},
        ":horizon": _stored(commit.horizon),
    }
    if commit.manifest is not None:
        update += ", manifest = :manifest"
        values[":manifest"] = {"S": commit.manifest}
    if commit.shown is not None:
        update += ", shown = :shown"
        values[":shown"] = {"S": commit.shown}
    condition = "attribute_not_exists(evaluated_through)"
    if before.evaluated_through is not None:
        condition = "evaluated_through = :before"
        values[":before"] = {"N": str(before.evaluated_through)}
    if before.manifest is None:
        condition += " AND attribute_not_exists(manifest)"
    else:
        condition += " AND manifest = :read"
        values[":read"] = {"S": before.manifest}
    removed = "basis, draft, written" if commit.shown is not None else "shown, basis, draft, written"
    if commit.remaking is None:
        removed += ", remaking"
    else:
        update += ", remaking = :remaking"
        values[":remaking"] = {"L": [{"S": text} for text in commit.remaking]}
    return f"{update} REMOVE {removed}", condition, values


def _values(run: int, more: dict[str, Any] | None = None) -> dict[str, Any]:
    return {":run": {"N": str(run)}, **(more or {})}


def _stored(horizon: Horizon) -> dict[str, Any]:
    return {"L": [attribute(value) for value in astuple(horizon)]}


def _progress(progress: Progress) -> dict[str, Any]:
    return {
        ":basis": {"S": progress.base},
        ":draft": {"S": progress.draft},
        ":written": {"N": str(progress.written)},
    }


def _row(item: Item) -> SlotRow:
    """The row in a slot's item."""

    def step(name: str) -> int | None:
        return int(item[name]["N"]) if name in item else None

    horizon = None
    if "horizon" in item:
        stored = item["horizon"]["L"]
        horizon = Horizon(*(int(each["N"]) if "N" in each else each.get("S") for each in stored))  # type: ignore[arg-type]
    progress = None
    if "draft" in item:
        progress = Progress(item["basis"]["S"], item["draft"]["S"], int(item["written"]["N"]))
    return SlotRow(
        step("run") or 0,
        step("evaluated_through"),
        item["manifest"]["S"] if "manifest" in item else None,
        tuple(name["S"] for name in item.get("kept", {"L": []})["L"]),
        progress,
        step("begun"),
        horizon,
        "retired" in item,
        float(item["lease_until"]["N"]) if "lease_until" in item else None,
        item["shown"]["S"] if "shown" in item else None,
        item["gathered"]["S"] if "gathered" in item else None,
        Remaking(*(text["S"] for text in item["remaking"]["L"])) if "remaking" in item else None,
    )


def _name(place: Place) -> str:
    return f"{_SLOT}{place.layout}#{place.slot}"
