"""Control: the row of each slot of each layout, the numbers of the types, and the fingerprints of immutable values.

Every lease of a slot raises its *run*. All writes of a worker are conditional on its run, so a late worker changes
nothing (docs/proofs/segments.md).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass
from typing import Any, NamedTuple

from kanon.dynamo.batches import Item
from kanon.dynamo.fingerprints import Fingerprints
from kanon.dynamo.tables import bound
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
_PROGRESS = "basis = :basis, draft = :draft, written = :written"
_MADE = "shown, remaking, gathered"
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

    evaluated_through: int
    manifest: str | None
    kept: tuple[str, ...]
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
            bound(until=until, holder=holder, now=now, one=1),
            ReturnValues="ALL_NEW",
        )
        return None if answer is None else _row(answer["Attributes"])

    def release(self, place: Place, run: int) -> None:
        """Release the lease if this run is the current one."""
        self._update(_name(place), RELEASE, IF_CURRENT, bound(run=run))

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
            ExpressionAttributeValues=bound(slot=_SLOT),
        ):
            layout, slot = item["name"]["S"].removeprefix(_SLOT).split("#")
            yield Place(int(layout), int(slot)), _row(item)

    def record_decided(self, place: Place, run: int, step: int, progress: Progress) -> None:
        """Record parts of ``step`` as decided: from now on their crossings may be out.

        Raises:
            LeaseLostError: the run is over.
        """
        values, update = _progress(progress), f"SET {_PROGRESS}, begun = :step"
        condition = f"{IF_CURRENT} AND (attribute_not_exists(begun) OR begun <= :step)"
        if self._update(_name(place), update, condition, bound(run=run, step=step, **values)) is None:
            # A recovery goes back to earlier steps, and `begun` stays.
            self._write(place, run, f"SET {_PROGRESS}", **values)

    def record_gathered(self, place: Place, run: int, name: str | None) -> None:
        """Record the list of what was read of the next step with joins; None: nothing that is there.

        Raises:
            LeaseLostError: the run is over.
        """
        if name is None:
            self._write(place, run, "REMOVE gathered")
        else:
            self._write(place, run, "SET gathered = :name", name=name)

    def fence(self, place: Place, run: int, written: int) -> dict[str, Any]:
        """The part of a transaction that stores the place among the crossings, if the run is current."""
        return self._part(_name(place), "SET written = :written", IF_CURRENT, bound(run=run, written=written))

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
        own = self._part(_name(place), update, f"{IF_CURRENT} AND {condition}", bound(run=run, **values))
        for show in [[each] for each in shows] or [[]]:
            refused = all_or_none(self._client, [own, *show], COMMIT_ATTEMPTS)
            if refused is None:
                return
            if refused[0] is not None:
                raise lost(place)
        raise older_statuses(place)

    def restate(self, place: Place, run: int, step: int, kept: Sequence[str], progress: Progress | None = None) -> None:
        """Put other states in the place of those of a slot, and let its horizon and ``begun`` stay. For a command.

        The next step makes its object of true sets of all parts, and reads its joins again.

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
        update += f" REMOVE {_MADE}, basis, draft, written" if progress is None else f", {_PROGRESS} REMOVE {_MADE}"
        values = {} if progress is None else _progress(progress)
        self._write(place, run, update, step=step, kept=list(kept), manifest=kept[-1], **values)

    def forget_decided(self, place: Place, run: int) -> None:
        """Let the next step be decided again, with the same result. For a command.

        Raises:
            LeaseLostError: the run is over.
        """
        self._write(place, run, "REMOVE basis, draft, written")

    def put_horizon(self, place: Place, run: int, horizon: Horizon, show: dict[str, Any]) -> None:
        """Write the horizon of a slot here and, with ``show``, in Statuses. For a command.

        Raises:
            LeaseLostError: the run is over.
        """
        own = self._part(_name(place), "SET horizon = :horizon", IF_CURRENT, bound(run=run, horizon=astuple(horizon)))
        if all_or_none(self._client, [own, show]) is not None:
            raise lost(place)

    def raise_run(self, place: Place, run: int, above: int) -> int:
        """A new run of a leased slot, later than ``above``: objects may have names of runs that Control has lost.

        Raises:
            LeaseLostError: the run is over.
        """
        new = max(run, above) + 1
        self._write(place, run, "SET run = :new", new=new)
        return new

    def begin_command(self) -> int:
        """The number of a new command. :meth:`retire` is refused if another one has begun since."""
        return int(self._set(_COMMANDS, "ADD latest :one", one=1)["Attributes"]["latest"]["N"])

    def retire(self, place: Place, command: int) -> bool:
        """Let nobody need the objects of a slot any more, and raise its run; False if another command has begun."""
        update = (
            f"SET retired = :true ADD run :one REMOVE manifest, kept, shown, remaking, basis, draft, written, {_LEASE}"
        )
        own = self._part(_name(place), update, "attribute_not_exists(retired)", bound(true=True, one=1))
        check = {
            "TableName": self._table,
            "Key": self._key(_COMMANDS),
            "ConditionExpression": "latest = :command",
            "ExpressionAttributeValues": bound(command=command),
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

    def _write(self, place: Place, run: int, update: str, **values: Any) -> None:
        """Update the row of a slot.

        Raises:
            LeaseLostError: the run is over.
        """
        if self._update(_name(place), update, IF_CURRENT, bound(run=run, **values)) is None:
            raise lost(place)


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
    written = {**commit._asdict(), "horizon": astuple(commit.horizon)}
    values: dict[str, Any] = {name: value for name, value in written.items() if value is not None}
    update = f"SET {', '.join(f'{name} = :{name}' for name in values)} REMOVE basis, draft, written"
    update += "".join(f", {name}" for name in ("shown", "remaking") if name not in values)
    condition = "attribute_not_exists(evaluated_through)"
    if before.evaluated_through is not None:
        condition = "evaluated_through = :before"
        values["before"] = before.evaluated_through
    if before.manifest is None:
        condition += " AND attribute_not_exists(manifest)"
    else:
        condition += " AND manifest = :read"
        values["read"] = before.manifest
    return update, condition, values


def _progress(progress: Progress) -> dict[str, Any]:
    return {"basis": progress.base, "draft": progress.draft, "written": progress.written}


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
