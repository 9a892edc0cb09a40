"""The product's evaluation of a step, relative to set by set (``infra/measure/before.py``), in one run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any

import boto3

from infra.measure.before import SetBySet
from infra.measure.measure import Count, Ratio, Turn, compare
from infra.measure.one_step import ONE_SLOT, evaluate_step, evaluation_of, stored
from infra.measure.rows import Form, row
from infra.measure.service import PERIOD, START, Service, fledge, service, variables
from kanon.dynamo.batches import Item, get_all, put_all
from kanon.gate.evaluation import Evaluation
from kanon.gate.stamps import put_stamps
from kanon.gate.storage.control import Control
from kanon.gate.storage.step_log import Row, StepLog
from kanon.local.meter import Meter

KEYS = {
    "StepLog": ("step_slot", "set_token"),
    "Members": ("set_key",),
    "Statuses": ("set_key",),
    "Control": ("name:S",),
}
ATTRIBUTES = "members, evaluated, crossings, wake_up"
FIRST = START // PERIOD


@dataclass(frozen=True)
class Workload:
    """Known sets with given numbers of members. One new client joins each set in every step."""

    name: str
    sets: int
    k: int
    members: tuple[int, int]
    target: float


@dataclass
class Side:
    """Four tables of one side, and their evaluation."""

    service: Service
    workload: Workload
    evaluation_type: type[Evaluation]
    step: int = FIRST
    tables: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        client, name = self.service.dynamodb, self.evaluation_type.__name__
        self.tables = {
            table: self.service.new_table(f"{name}-{self.workload.k}-{self.workload.sets}-{table}", *keys)
            for table, keys in KEYS.items()
        }
        self.type = fledge(k=self.workload.k)
        self.evaluation = self.evaluation_on(client)
        chance = Random(1)
        self.keys = [chance.randbytes(32) for _ in range(self.workload.sets)]
        assert not put_all(client, self.tables["Members"], (self.stored(key, chance) for key in self.keys), ["set_key"])
        put_stamps(0, FIRST - 1, self.evaluation.members, self.evaluation.statuses)
        Control(client, self.tables["Control"]).advance(0, None, FIRST - 1)

    def evaluation_on(self, client: Any) -> Evaluation:
        """The evaluation, with a client."""
        table = self.tables["Members"]
        more: dict[str, Any] = {}
        if self.evaluation_type is SetBySet:
            more = {
                "get": partial(get_all, client, table, key_name="set_key", attributes=ATTRIBUTES, consistent=True),
                "put": partial(client.put_item, TableName=table),
            }
        return evaluation_of(client, self.type, self.tables, kind=self.evaluation_type, **more)

    def stored(self, set_key: bytes, chance: Random) -> Item:
        """The item of a set before the first step."""
        low, high = self.workload.members
        tokens = chance.sample(range(1 << 15), min(chance.randint(low, high), self.type.parameters.members_kept))
        lasts = [FIRST - 1 - chance.randrange(300) for _ in tokens]
        return stored(set_key, self.type, tokens, lasts, FIRST - 1)

    def turn(self) -> Turn:
        """A step whose joins are in the log."""
        token = (1 << 15) + self.step - FIRST
        rows = (Row(self.step, key, token, "fledge", START + 10**8) for key in self.keys)
        assert not StepLog(self.service.dynamodb, self.tables["StepLog"], ONE_SLOT).put_all(rows)
        return Turn(len(self.keys), self.evaluate)

    def evaluate(self) -> None:
        """Evaluate the step."""
        evaluate_step(self.evaluation, self.step, len(self.keys))
        self.step += 1

    def items(self) -> list[list[str]]:
        """Everything in Members and Statuses."""
        scan = self.service.dynamodb.get_paginator("scan")
        return [
            sorted(
                repr(sorted(item.items()))
                for page in scan.paginate(TableName=self.tables[table])
                for item in page["Items"]
                if len(item["set_key"]["B"]) > 1
            )
            for table in ("Members", "Statuses")
        ]

    def units(self) -> int:
        """Write units of another step."""
        meter = Meter(self.service.dynamodb)
        with variables(self.service.environments["join"]):
            session = boto3.Session()
            meter.attach(session, "evaluate")
            self.evaluation = self.evaluation_on(session.client("dynamodb"))
        self.turn().work()
        return meter.written["evaluate"]


def workloads(form: Form) -> list[Workload]:
    """A long tail, full sets, and full sets of a large k."""
    return [
        Workload("long tail, 1 to 4 members", form.size(1_000, 60), 50, (1, 4), 8.0),
        Workload("k = 50, full sets", form.size(500, 50), 50, (99, 99), 8.0),
        Workload("k = 1,000, full sets", form.size(100, 30), 1_000, (2_000, 2_000), 8.0),
    ]


@row("evaluate against set by set")
def evaluate(form: Form) -> Iterator[Ratio | Count]:
    """A step in which each known set has one join."""
    with service() as running:
        for workload in workloads(form):
            ours, theirs = Side(running, workload, Evaluation), Side(running, workload, SetBySet)
            yield compare(
                f"evaluate, one of {workload.sets:,} touched sets: {workload.name}",
                "set by set, as before columns and statements (infra/measure/before.py), with the same client",
                "set",
                ours.turn,
                theirs.turn,
                inside="a run of one step: lease, log, Members, deciding, all writes, horizon, mark; no start-up",
                turns=form.size(3, 1),
                target=workload.target,
                at_least=True,
            )
            if ours.items() != theirs.items():
                raise RuntimeError("the two evaluations store different items")
            units = [side.units() for side in (ours, theirs)]
            yield Count(
                f"write units of evaluate, relative to set by set: {workload.name}",
                "the same step",
                units[0] / units[1],
                1.0,
            )
