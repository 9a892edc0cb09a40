"""An evaluation of one slot for measurements, and a run over one step of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from infra.measure.service import PERIOD, START
from kanon.dynamo.batches import Item
from kanon.gate.evaluation import Evaluation, NoiseKeys
from kanon.gate.mechanism.above_threshold import SetState
from kanon.gate.mechanism.members import Member
from kanon.gate.mechanism.steps import end_of
from kanon.gate.schedule import Schedule
from kanon.gate.slots import Layout, Layouts
from kanon.gate.storage.control import Control
from kanon.gate.storage.members import Members, to_item
from kanon.gate.storage.statuses import Statuses
from kanon.gate.storage.step_log import StepLog
from kanon.gate.types import Type
from kanon.noise.words import NoiseKey

KEY = NoiseKey("1", bytes(32))
SCHEDULE = Schedule(PERIOD, grace=120, lease=150, publish_delay=1800, publish_margin=60, outage_allowance=604_800)
ONE_SLOT = Layouts((Layout(1, 0),))
TABLES: Mapping[str, str] = MappingProxyType({name: name for name in ("StepLog", "Members", "Statuses", "Control")})


def evaluation_of(
    client: Any,
    type_: Type,
    tables: Mapping[str, str] = TABLES,
    layouts: Layouts = ONE_SLOT,
    kind: type[Evaluation] = Evaluation,
    **more: Any,
) -> Evaluation:
    """The evaluation of a type on a client of DynamoDB; ``more`` are further fields of ``kind``."""
    return kind(
        types={type_.name: type_},
        noise_keys=NoiseKeys(((0, KEY),)),
        deployment="bench",
        schedule=SCHEDULE,
        log=StepLog(client, tables["StepLog"], layouts),
        members=Members(client, tables["Members"]),
        statuses=Statuses(client, tables["Statuses"]),
        control=Control(client, tables["Control"]),
        check_control=lambda: None,
        **more,
    )


def stored(set_key: bytes, type_: Type, tokens: Iterable[int], lasts: Iterable[int], step: int) -> Item:
    """The item of a set with these members, evaluated through ``step``. A full set has crossed with its last join."""
    members = sorted(map(Member, tokens, lasts), key=lambda member: (-member.last, member.token))
    crossings = (members[0].last,) if len(members) == type_.parameters.members_kept else ()
    state = SetState(tuple(members), crossings, step)
    return to_item(set_key, type_.name, state, type_.parameters.client_bits, START + 10**8)


def evaluate_step(evaluation: Evaluation, step: int, sets: int, time_left: Callable[[], float] = lambda: 900.0) -> None:
    """Evaluate ``step`` of slot 0, which touches ``sets`` sets.

    Raises:
        RuntimeError: it was not evaluated, or touched another number of sets.
    """
    now = float(end_of(step, PERIOD) + 180)
    outcome = evaluation.run(0, "bench", lambda: now, time_left)
    if (outcome.steps, outcome.sets) != (1, sets):
        raise RuntimeError(f"the step was not evaluated: {outcome}")
