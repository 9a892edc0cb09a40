"""Table ReportJobs: the state of each job, and the results of its workers; and the messages that take a job on.

Each change of state is one conditional write. Up to the commit its condition includes the deadline, so a worker that
was paused for longer cannot commit against budget rows that may have expired.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from hashlib import sha256
from itertools import chain
from typing import Annotated, Any, Literal, Protocol, Self

from pydantic import BaseModel, ConfigDict, Field, StrictInt

from kanon.dynamo.batches import Item
from kanon.dynamo.conditions import refused_by, unless_refused
from kanon.dynamo.tables import KeyedTable, bound, item_of
from kanon.dynamo.transactions import all_or_none
from kanon.noise.bound import Bound
from kanon.noise.exact import written_up
from kanon.reports.job import JobRequest
from kanon.reports.shared_info import DAY

SECONDS_TO_COMMIT = DAY
STUCK = SECONDS_TO_COMMIT // 2
"""Seconds after which an operator should look at a job that is not finished."""
KEPT = 400 * DAY
WORK_KEPT = 7 * DAY
STAGED_KEPT = 30 * DAY
"""Seconds in which a committed summary can be published. A day later the work bucket deletes its parts."""
OPEN = "|open"
"""The partition key of the list of unfinished jobs, for the sweep. No job id has a bar."""
JOB = "job"
IF_NEW = {"ConditionExpression": "attribute_not_exists(job)"}


class State(StrEnum):
    """The state of a job. Only the change from COMMITTING to COMMITTED spends and makes the result final."""

    RECEIVED = "RECEIVED"
    MAPPING = "MAPPING"
    MATCHING = "MATCHING"
    REMAPPING = "REMAPPING"
    REDUCING = "REDUCING"
    COMMITTING = "COMMITTING"
    ABORTING = "ABORTING"
    COMMITTED = "COMMITTED"
    FINISHED = "FINISHED"


BEFORE_COMMIT = (State.RECEIVED, State.MAPPING, State.MATCHING, State.REMAPPING, State.REDUCING)
"""A failure in one of these states ends the job, and nothing is spent."""
_UNCOMMITTED = (*BEFORE_COMMIT, State.COMMITTING)


def has_deadline(old: State, new: State) -> bool:
    """Whether a job may move so only before its deadline: afterwards rows of budget may expire."""
    return old in _UNCOMMITTED and new in (*_UNCOMMITTED, State.COMMITTED)


def keeps_secret(old: State, new: State) -> bool:
    """Whether a job that moves so keeps its secret. One that has committed or ended needs no more noise."""
    return old in _UNCOMMITTED and new not in (State.COMMITTED, State.FINISHED)


STAGES = {State.MAPPING: "map", State.REMAPPING: "remap", State.REDUCING: "reduce"}
"""The states in which workers record results, with the name of the stage."""


PIECES = "piece"
"""Before the stage and the number of a shard: the results of its pieces."""


@dataclass(frozen=True)
class JobRow:
    """A job as it is stored.

    Attributes:
        request: the body of createJob, as JSON.
        received_at: unix seconds.
        updated_at: unix seconds.
        secret: 32 bytes, a part of the noise's seed; None after it is committed or failed.
        values: the records of the stages, by name: digests, parts, counters, code.
    """

    job: str
    state: State
    request: dict[str, Any]
    received_at: int
    updated_at: int
    secret: bytes | None
    values: dict[str, Any]

    @property
    def deadline(self) -> int:
        """When the job may no longer commit, unix seconds."""
        return self.received_at + SECONDS_TO_COMMIT

    @property
    def claim(self) -> str:
        """Names what the job takes. It depends on the plan and the units of account.

        So if a copy of the row is put back and planned again, it cannot use budget that was taken before.
        """
        if self.secret is None:
            raise ValueError("a job without its secret claims nothing")
        pinned = "\0".join((self.values["plan"], self.values["sources"])).encode()
        return sha256(b"kanon/reports/claim/2" + self.secret + pinned).hexdigest()[:32]

    @property
    def committed(self) -> bool:
        """Whether the job has spent its budget."""
        return "committed_at" in self.values

    def __repr__(self) -> str:
        return f"JobRow({self.state})"


RELEASED = "released"
"""The recorded value of a job."""


@dataclass(frozen=True)
class ReleasedKeys:
    """The keys of a job in mode kanon: values that the gate has released, of the newest list on its receipt.

    A list of released values is a function of the gate's answers, so these keys depend on no report. The new job's row
    names the list, and no other one is read for it. The plan pins the keys. A newer list would be a second draw at the
    price of one. A job whose list is gone before it is planned ends, and spends nothing.

    Attributes:
        type_name: the listed type.
        step: of the list.
        count: the number of its values.
        join: the gate's bound for one join, whose step may depend on a year of answers.
        name: of the keys in the job's work folder, 16 bytes each, ascending, each once; "" if the plan reads the list.
        bits, run: where the list is (:class:`kanon.gate.lists.ReadableList`).
    """

    type_name: str
    step: int
    count: int
    join: Bound
    name: str = ""
    bits: int = 0
    run: str = ""

    @property
    def recorded(self) -> dict[str, Any]:
        """The recorded values of a job with these keys. Delta is rounded up: it may have thousands of digits."""
        epsilon, delta = str(self.join.epsilon), str(written_up(self.join.delta, 12))
        fields = {"type": self.type_name, "step": self.step, "count": self.count, "name": self.name}
        return {RELEASED: {**fields, "epsilon": epsilon, "delta": delta, "bits": self.bits, "run": self.run}}

    @classmethod
    def of(cls, row: JobRow) -> Self | None:
        """Those of a job; None in the other modes."""
        if RELEASED not in row.values:
            return None
        value = row.values[RELEASED]
        join = Bound(Fraction(value["epsilon"]), Fraction(value["delta"]))
        place = {name: value[name] for name in ("name", "bits", "run") if name in value}
        return cls(value["type"], value["step"], value["count"], join, **place)


def output_of(row: JobRow, request: JobRequest) -> tuple[str, str]:
    """The bucket and the prefix of a job's summary, as last requested."""
    bucket, prefix = row.values.get("output", (request.output_bucket, request.output_prefix))
    return bucket, prefix


class MapMessage(BaseModel):
    """Map one shard of a job, or map it again without what a manifest leaves out."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Annotated[str, Field(min_length=1, max_length=128)]
    stage: Literal["map", "remap"]
    shard: Annotated[StrictInt, Field(ge=0, lt=1_000)]


class StageMessage(BaseModel):
    """Take a job as far as it goes; ``part`` names a part of the summary to reduce."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    job: Annotated[str, Field(min_length=1, max_length=128)]
    part: Annotated[StrictInt, Field(ge=0, lt=10_000)] | None = None


Message = MapMessage | StageMessage


class JobsTable(Protocol):
    """What routes and stages need of jobs, wherever they are. :class:`ReportJobs` says what each method promises."""

    def create(self, job: str, request: Mapping[str, Any], received_at: int, secret: bytes, **values: Any) -> bool:
        """Store a new job."""

    def read(self, job: str) -> JobRow | None:
        """The job."""

    def move(self, row: JobRow, to: State, now: float, **values: Any) -> bool:
        """Move a job to another state."""

    def record(self, job: str, stage: str, number: int, value: Any, now: float) -> Any:
        """Record a worker's result."""

    def recorded(self, job: str, stage: str) -> dict[int, Any]:
        """The results of a stage."""

    def forget_work(self, job: str) -> None:
        """Delete the workers' results."""


class ReportJobs(KeyedTable):
    """The jobs of a deployment, in DynamoDB."""

    def create(self, job: str, request: Mapping[str, Any], received_at: int, secret: bytes, **values: Any) -> bool:
        """Store a new job and record values as JSON; False if there is one with this id."""
        row = item_of(
            job=job,
            part=JOB,
            state=State.RECEIVED,
            request=_json(request),
            received_at=received_at,
            updated_at=received_at,
            deadline=received_at + SECONDS_TO_COMMIT,
            secret=secret,
            **{f"v_{name}": _json(value) for name, value in values.items()},
        )
        listed = item_of(job=OPEN, part=job, received_at=received_at)
        puts = [{"Put": {"TableName": self._table, "Item": item, **IF_NEW}} for item in (row, listed)]
        return all_or_none(self._client, puts) is None

    def read(self, job: str) -> JobRow | None:
        """The job, strongly consistent; None if there is none."""
        item = self._item((job, JOB))
        return _row(item) if item else None

    def unfinished(self) -> Iterator[str]:
        """The ids of the jobs that are not finished."""
        for item in self._query(OPEN, "", "part"):
            yield item["part"]["S"]

    def moved_at(self, row: JobRow) -> int:
        """The last progress of the job, unix seconds: a change of state, or a worker's result in its state."""
        stage = STAGES.get(row.state)
        begins = (f"{stage}#", f"{PIECES}#{stage}#") if stage else ()
        items = chain.from_iterable(self._query(row.job, begin, "#ttl", {"#ttl": "ttl"}) for begin in begins)
        return max([row.updated_at, *(int(item["ttl"]["N"]) - WORK_KEPT for item in items)])

    def move(self, row: JobRow, to: State, now: float, **values: Any) -> bool:
        """Move a job from the state of ``row`` to another one; False if it has left that state. ``now`` in Unix s.

        Values are recorded as JSON. Each name is recorded by one stage only.
        """
        update = self._update_of(row.job, row.state, to, now, values)
        if to is not State.FINISHED:
            return unless_refused(self._client.update_item, **update) is not None
        listed = {"TableName": self._table, "Key": self._key((OPEN, row.job))}
        closed = {"Delete": {**listed, "ConditionExpression": "attribute_exists(job)"}}
        return all_or_none(self._client, [{"Update": update}, closed]) is None

    # Parts of the commit's transactions.

    def still(self, job: str, state: State, now: float | None = None) -> dict[str, Any]:
        """A check that the job is in a state, and if ``now`` is given that its deadline has not passed."""
        condition, values = _in_state(state, now)
        return {
            "ConditionCheck": {
                "TableName": self._table,
                "Key": self._key((job, JOB)),
                "ConditionExpression": condition,
                "ExpressionAttributeNames": {"#state": "state"},
                "ExpressionAttributeValues": values,
            }
        }

    def commit(self, job: str, now: float, **values: Any) -> dict[str, Any]:
        """The write that commits: the job becomes COMMITTED and loses its secret."""
        recorded = {**values, "committed_at": int(now)}
        return {"Update": self._update_of(job, State.COMMITTING, State.COMMITTED, now, recorded)}

    # Results of workers.

    def record(self, job: str, stage: str, number: int, value: Any, now: float) -> Any:
        """Record a worker's result, unless another one was first. Returns the recorded result."""
        item = item_of(job=job, part=f"{stage}#{number:06}", value=_json(value), ttl=int(now) + WORK_KEPT)
        standing = refused_by(self._client.put_item, TableName=self._table, Item=item, **IF_NEW)
        return value if standing is None else json.loads(standing["value"]["S"])

    def recorded(self, job: str, stage: str) -> dict[int, Any]:
        """The results of a stage by number, strongly consistent."""
        items = self._query(job, f"{stage}#", "part, #value", {"#value": "value"})
        return {int(item["part"]["S"].rpartition("#")[2]): json.loads(item["value"]["S"]) for item in items}

    def forget_work(self, job: str) -> None:
        """Delete the workers' results. It may be called again."""
        for stage in (*STAGES.values(), PIECES):
            for item in list(self._query(job, f"{stage}#", "part")):
                self._client.delete_item(TableName=self._table, Key=self._key((job, item["part"]["S"])))

    def _update_of(self, job: str, old: State, to: State, now: float, values: Mapping[str, Any]) -> dict[str, Any]:
        condition, given = _in_state(old, now if has_deadline(old, to) else None)
        names = {"#state": "state", **{f"#v{i}": f"v_{name}" for i, name in enumerate(values)}}
        given |= bound(to=to, updated=int(now), **{f"v{i}": _json(value) for i, value in enumerate(values.values())})
        update = "SET #state = :to, updated_at = :updated"
        update += "".join(f", #v{i} = :v{i}" for i in range(len(values)))
        if to is State.FINISHED:
            names["#ttl"] = "ttl"
            given |= bound(ttl=int(now) + KEPT)
            update += ", #ttl = :ttl"
        if not keeps_secret(old, to):
            names["#secret"] = "secret"
            update += " REMOVE #secret"
        return {**self._conditional((job, JOB), update, condition, given), "ExpressionAttributeNames": names}

    def _key(self, key: tuple[str, str]) -> Item:
        job, part = key
        return item_of(job=job, part=part)

    def _query(self, job: str, begins: str, attributes: str, names: Mapping[str, str] | None = None) -> Iterator[Item]:
        condition = "job = :job AND begins_with(part, :begins)" if begins else "job = :job"
        values = bound(job=job) | (bound(begins=begins) if begins else {})
        more: dict[str, Any] = {"ExpressionAttributeNames": dict(names)} if names else {}
        pages = self._client.get_paginator("query").paginate(
            TableName=self._table,
            ConsistentRead=True,
            KeyConditionExpression=condition,
            ProjectionExpression=attributes,
            ExpressionAttributeValues=values,
            **more,
        )
        for page in pages:
            yield from page["Items"]


def _row(item: Item) -> JobRow:
    return JobRow(
        item["job"]["S"],
        State(item["state"]["S"]),
        json.loads(item["request"]["S"]),
        int(item["received_at"]["N"]),
        int(item["updated_at"]["N"]),
        bytes(item["secret"]["B"]) if "secret" in item else None,
        {name.removeprefix("v_"): json.loads(value["S"]) for name, value in item.items() if name.startswith("v_")},
    )


def _in_state(state: State, now: float | None) -> tuple[str, dict[str, Any]]:
    if now is None:
        return "#state = :state", bound(state=state)
    return "#state = :state AND deadline > :now", bound(state=state, now=int(now))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
