"""``kanon doctor``: checks a running stack and reports problems and what to do.

It reads Control, the horizons, two queues, the schedule, and the parts of :mod:`kanon.operate.reports` and
:mod:`kanon.operate.gateway`. With ``secrets`` it also reads the secrets, to compare what is made of them. Its output
contains no set, client, count of them, key or fingerprint.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise, starmap
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from kanon.dynamo.tables import created, described, table_ids
from kanon.errors import ConfigurationError, UndecodableMembersError
from kanon.findings import Finding, Section, Verdict, moment
from kanon.gate.fingerprints import (
    NOISE_KEY,
    RETIRED,
    TYPE,
    fingerprints,
    from_step_recorded,
    missing_layouts,
    missing_noise_keys,
    noise_key_fingerprints,
    recorded_names,
    refuse_forgetting,
    refuse_noise_keys,
    refuse_types,
    refuse_without_key,
    steps_late,
    unchanged_keys,
)
from kanon.gate.generations import recorded_generations, refuse_log_generations, replaced_tables
from kanon.gate.mechanism.bounds import met_by_one_join, over_generations
from kanon.gate.mechanism.steps import end_of, step_at
from kanon.gate.publishing import Horizon, tick_of
from kanon.gate.settings import LogGenerationEntry, NoiseKeyEntry, SlotsEntry
from kanon.gate.slots import Layouts
from kanon.gate.storage.aws.control import Place, SlotRow
from kanon.gate.storage.aws.true_objects import run_of
from kanon.keys import Secret, fetch_secret
from kanon.operate.changes import changed_fingerprints
from kanon.operate.findings import environment_finding, queue_finding, readable, schedule_finding
from kanon.operate.gateway import examine_gateway
from kanon.operate.generation import newest_entries
from kanon.operate.issuer import examine_issuer
from kanon.operate.noise_key import last_needed
from kanon.operate.reports import examine_reports
from kanon.operate.running_reports import ReportSettingsError
from kanon.operate.stacks import RunningStack, reason
from kanon.operate.states import lists_of

UNDO = "undo the change and deploy; other values need a new type name or a new stack"
WITHOUT_KEY = ("INACCESSIBLE_ENCRYPTION_CREDENTIALS", "ARCHIVING", "ARCHIVED")
"""States of a table whose key DynamoDB may not use."""


@dataclass(frozen=True)
class Case:
    """A stack and the values read from it at ``now`` (Unix s)."""

    stack: RunningStack
    now: float
    recorded: Mapping[str, Mapping[str, str]]
    rows: Mapping[Place, SlotRow]
    horizons: Mapping[int, Horizon]
    secrets: bool

    @cached_property
    def log_made(self) -> float:
        """When the table of the log was made, Unix s; 0 if it was made from a backup."""
        tables = {"StepLog": self.stack.evaluate.step_log_table}
        return created(described(self.stack.client("dynamodb"), tables)["StepLog"])

    @property
    def configured(self) -> dict[int, SlotRow]:
        """The rows of the slots of the current layout, and of older ones whose steps may still be evaluated.

        A slot has its row in the newest layout in which it has evaluated a step.
        """
        schedule = self.stack.schedule
        oldest, last = schedule.oldest_allowed(self.now), schedule.last_closed(self.now)
        at_work = self.stack.evaluate.layouts.evaluated(oldest, last)
        newest = {place.slot: row for place, row in sorted(self.rows.items()) if row.evaluated_through is not None}
        first = self.stack.evaluate.layouts.entries[0].from_step
        return {slot: newest.get(slot, self.rows.get(Place(first, slot), SlotRow())) for slot in at_work}

    @property
    def places(self) -> dict[Place, SlotRow]:
        """The rows of all slots. Those that Control does not have are empty."""
        every = (
            Place(layout.from_step, s) for layout in self.stack.evaluate.layouts.entries for s in range(layout.slots)
        )
        return {place: SlotRow() for place in every} | dict(self.rows)


def examine(stack: RunningStack, now: float, *, secrets: bool = False) -> list[Finding]:
    """All findings at ``now`` (Unix s), in the order of the checks. ``secrets``: read and compare the secrets too.

    Raises:
        BotoCoreError, ClientError: Control or the horizons cannot be read.
        ThrottledError: the horizons were not answered.
    """
    key = _encryption_key(stack)
    try:
        case = _read(stack, now, secrets=secrets)
    except ClientError:
        if any(finding.wrong for finding in key):
            return key  # without the key no table can be read
        raise
    of_reports = examine_reports(stack.reports, now) if stack.reports else ()
    of_gateway = examine_gateway(stack, now, secrets=secrets)
    of_issuer = examine_issuer(stack, now, secrets=secrets)
    return [*key, *(finding for check in CHECKS for finding in check(case)), *of_gateway, *of_issuer, *of_reports]


def unusable(error: ConfigurationError) -> Finding:
    """The finding about a stack that cannot be examined, because a function refuses its environment."""
    check, section = "environment", Section.EVALUATION_STOPPED
    if isinstance(error, ReportSettingsError):
        check, section = "report functions", Section.REPORT_FUNCTION_ERRORS
    advice = "undo the change and deploy; for a stack of an older version deploy this one, or use the tools of that one"
    return Finding(check, Verdict.FAIL, str(error), advice, section)


def _read(stack: RunningStack, now: float, *, secrets: bool) -> Case:
    control = stack.control
    recorded = {owner: control.recorded(owner) for owner in ("join", "query", "evaluate")}
    rows = dict(control.rows())
    _, horizons = stack.statuses.read((), stack.evaluate.layouts.slots, consistent=True)
    return Case(stack, now, recorded, rows, horizons, secrets)


# The key of the tables


@readable("encryption key")
def _encryption_key(stack: RunningStack) -> Iterator[Finding]:
    """Whether DynamoDB may use the key: after seven days without it, it archives a table."""
    check, section = "encryption key", Section.KEY
    tables = described(stack.client("dynamodb"), stack.evaluate.tables)
    arns = {table.get("SSEDescription", {}).get("KMSMasterKeyArn", "") for table in tables.values()} - {""}
    keys = [stack.client("kms").describe_key(KeyId=arn)["KeyMetadata"] for arn in sorted(arns)]
    lost = sorted(name for name, table in tables.items() if table["TableStatus"] in WITHOUT_KEY)
    unusable = [f"{key['KeyState']}{_deleted_on(key)}" for key in keys if key["KeyState"] != "Enabled"]
    if lost:
        seen = f"DynamoDB cannot use the key of {', '.join(lost)} and archives them seven days after it lost it"
        yield Finding(check, Verdict.FAIL, seen, "enable the key immediately", section)
    elif unusable:
        seen = f"the key is {', '.join(unusable)}: DynamoDB archives the tables seven days after it became unusable"
        yield Finding(check, Verdict.FAIL, seen, "enable the key, or cancel its deletion, immediately", section)
    elif keys:
        yield Finding(check, Verdict.OK, "enabled")
    else:
        yield Finding(check, Verdict.NOT_SEEN, "the tables name no key")


def _deleted_on(key: Mapping[str, Any]) -> str:
    return f", deleted on {key['DeletionDate']:%Y-%m-%d}" if "DeletionDate" in key else ""


# Fingerprints


def _environments(case: Case) -> Iterator[Finding]:
    functions = case.stack.join, case.stack.query, case.stack.evaluate, case.stack.gateway, case.stack.issuer
    settings = [each for each in functions if each]
    names = "types", "period", "slots", "deployment", "control_table"
    good = "the functions have consistent environments"
    yield environment_finding("environment", settings, names, good, Section.EVALUATION_STOPPED)


def _fingerprints(case: Case) -> Iterator[Finding]:
    stack = case.stack
    for owner, settings, section, arns in (
        ("join", stack.join, Section.JOINS_REFUSED,
         {"set-pepper": stack.join.set_pepper_secret, "client-key": stack.join.client_key_secret}),
        ("query", stack.query, Section.QUERIES_REFUSED, {"set-pepper": stack.query.set_pepper_secret}),
        ("evaluate", stack.evaluate, Section.EVALUATION_STOPPED, {}),
    ):  # fmt: skip
        check, recorded = f"fingerprints of {owner}", case.recorded[owner]
        if not recorded:
            yield Finding(check, Verdict.NOT_SEEN, "the function has not started yet")
            continue
        types = settings.read_types()
        keys, unread = _keys(case, arns)
        current = fingerprints(settings, types, keys)
        changed = changed_fingerprints(recorded, current)
        compared = [name.removeprefix(TYPE).removeprefix("key ") for name in current]
        yield (
            Finding(check, Verdict.FAIL, f"changed since it first started: {', '.join(changed)}", UNDO, section)
            if changed
            else Finding(check, Verdict.OK, f"unchanged since it first started: {', '.join(compared)}")
        )
        if unread:
            yield Finding(f"keys of {owner}", Verdict.NOT_SEEN, unread)


def _keys(case: Case, arns: Mapping[str, str]) -> tuple[list[Secret], str]:
    """The keys of some secrets; or none, and the reason."""
    if not arns or not case.secrets:
        return [], "compared only with --secrets, which reads them" if arns else ""
    manager = case.stack.client("secretsmanager")
    try:
        return [fetch_secret(manager, name, arn) for name, arn in arns.items()], ""
    except (BotoCoreError, ClientError) as error:
        return [], reason(error)


@readable("types", Section.TYPE_MISSING)
def _types(case: Case) -> Iterator[Finding]:
    recorded, types = case.recorded["evaluate"], case.stack.evaluate.read_types()
    refuse_types(recorded, types)
    retired = recorded_names(recorded, RETIRED)
    for name in sorted(recorded_names(case.recorded["join"], TYPE) - types.keys() - retired):
        seen = f"join may have accepted joins of type {name!r}, which is no longer configured"
        advice = "evaluation stops at the first of them: deploy the type again, or retire it"
        yield Finding("types", Verdict.WARN, seen, advice, Section.TYPE_MISSING)
    yield Finding("types", Verdict.OK, f"none is missing; retired: {', '.join(sorted(retired)) or 'none'}")


@readable("noise keys", Section.NOISE_KEYS)
def _noise_keys(case: Case) -> Iterator[Finding]:
    """Compare the configured noise keys with the recorded ones, and name those that may be removed."""
    check, settings, recorded = "noise keys", case.stack.evaluate, case.recorded["evaluate"]
    entries = settings.noise_keys
    types, step = settings.read_types(), step_at(case.now, settings.period)
    refuse_noise_keys(recorded, entries, types, step)
    refuse_without_key(recorded, entries, types, step, steps_late(settings))
    if case.secrets:
        changed = changed_fingerprints(recorded, noise_key_fingerprints(entries, case.stack.noise_keys()))
    else:
        starts = {f"{NOISE_KEY}{entry.id}": entry.from_step for entry in entries}
        changed = [
            name for name, start in starts.items() if from_step_recorded(recorded.get(name, str(start))) != start
        ]
    if changed:
        seen = f"changed since first used: {', '.join(changed)}"
        yield Finding(check, Verdict.FAIL, seen, UNDO, Section.NOISE_KEYS)
        return
    yield from _missing_noise_keys(case)
    marks = {slot: progress.evaluated_through for slot, progress in case.configured.items()}
    for old, new in pairwise(entries):
        last = last_needed(case.stack, new)
        if all(mark is not None and not settings.layouts.steps(slot, mark, last) for slot, mark in marks.items()):
            seen = f"key {old.id} is no longer needed: it can be destroyed"
            yield Finding(check, Verdict.OK, seen, section=Section.NOISE_KEYS)
        else:
            until = moment(tick_of(last, settings.period, settings.publish_delay))
            seen = f"key {old.id} is needed until every slot is evaluated through step {last} ({until})"
            yield Finding(check, Verdict.OK, seen)
    seen = "as recorded" if case.secrets else "ids and first steps as recorded; keys are compared only with --secrets"
    yield Finding(check, Verdict.OK, f"{', '.join(entry.id for entry in entries)}: {seen}")


def _missing_noise_keys(case: Case) -> Iterator[Finding]:
    """The keys that a rollback left out of the parameter. Evaluation takes them from the secret."""
    recorded, entries = case.recorded["evaluate"], case.stack.evaluate.noise_keys
    missing = missing_noise_keys(recorded, entries)
    if not missing:
        return
    advice = f"deploy again with NoiseKeys='{_parameter(*entries, *missing)}'"
    ids = [entry.id for entry in missing]
    found = unchanged_keys(recorded, missing, case.stack.noise_keys(ids)) if case.secrets else dict.fromkeys(ids)
    for entry in missing:
        seen = f"key {entry.id}, from step {entry.from_step} on, is recorded and not configured"
        if entry.id in found:
            yield Finding("noise keys", Verdict.WARN, seen, advice, Section.ROLLED_BACK)
        else:
            seen += ", and not in the secret as it was recorded"
            restore = "evaluation stops before a search needs it: restore the secret"
            yield Finding("noise keys", Verdict.FAIL, seen, restore, Section.ROLLED_BACK)


@readable("forgetting", Section.EVALUATION_STOPPED)
def _forgetting(case: Case) -> Iterator[Finding]:
    """Whether a client is forgotten in a part of the states and joins only."""
    refuse_forgetting(case.recorded["evaluate"])
    return iter(())


@readable("log", Section.TABLE_REPLACED)
def _log_generations(case: Case) -> Iterator[Finding]:
    """Whether the tables are those of the newest log generation, and the privacy cost of all generations."""
    settings, recorded = case.stack.evaluate, case.recorded["evaluate"]
    ids = table_ids(case.stack.client("dynamodb"), settings.tables)
    known = recorded_generations(recorded)
    try:
        refuse_log_generations(recorded, settings.log_generations, ids)
    except ConfigurationError as error:
        entries = newest_entries(known)
        if not entries or replaced_tables([*known.values()][-1], ids):
            raise
        advice = f"deploy with LogGenerations='{_parameter(*entries)}': nothing is evaluated before"
        yield Finding("log", Verdict.FAIL, str(error), advice, Section.TABLE_REPLACED)
        return
    later = [step for step in known if step > 0]
    if not later:
        yield Finding("log", Verdict.OK, "the tables are the first ones" if known else "not recorded yet")
        return
    yield Finding("log", Verdict.OK, f"generations that begin at steps {', '.join(map(str, later))}")
    for name, type_ in settings.read_types().items():
        met = max(met_by_one_join(later, type_.parameters.window), key=len)
        bound = over_generations(type_.parameters, len(met), len(met))  # states may have been lost with each
        yield Finding("log", Verdict.OK, f"type {name}: one join can meet {len(met)} of them, and then costs {bound}")


# States


@readable("bucket")
def _bucket(case: Case) -> Iterator[Finding]:
    """Whether the bucket of states is there, and private."""
    client, bucket = case.stack.client("s3"), case.stack.evaluate.states_bucket
    try:
        client.head_bucket(Bucket=bucket)
    except ClientError as error:
        if error.response["Error"]["Code"] != "404":
            raise
        advice = "make it again as the template does, then kanon operate repair"
        yield Finding("bucket", Verdict.FAIL, f"there is no bucket {bucket}", advice, Section.STATES)
        return
    try:
        blocked = client.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
    except ClientError as error:
        if error.response["Error"]["Code"] != "NoSuchPublicAccessBlockConfiguration":
            raise
        blocked = {}
    if blocked and all(blocked.values()):
        yield Finding("bucket", Verdict.OK, "private")
    else:
        seen = f"bucket {bucket} does not block all public access"
        yield Finding("bucket", Verdict.FAIL, seen, "deploy again: the template blocks it", Section.STATES)


@readable("states")
def _states(case: Case) -> Iterator[Finding]:
    """Whether the parts after the mark of each slot, and those of the step that is begun, are there; unread."""
    bad = [place.slot for place, row in case.rows.items() if not _is_there(case.stack, place, row)]
    if bad:
        seen = f"{slots_text(bad)}: states are missing or damaged"
        yield Finding("states", Verdict.FAIL, seen, "kanon operate replay; if it refuses, repair", Section.STATES)
        return
    yield Finding("states", Verdict.OK, "every part is there" if case.rows else "none yet")
    lost = [place.slot for place, row in case.rows.items() if row.remaking or not _shows(case.stack, place, row)]
    if lost:
        seen = f"{slots_text(lost)}: the true sets are missing, and queries ask the table"
        yield Finding("states", Verdict.WARN, seen, "evaluate makes them again: do nothing")


def _is_there(stack: RunningStack, place: Place, row: SlotRow) -> bool:
    parts = stack.parts(place)
    try:
        names = {piece.name for name in lists_of(row) for piece in parts.list_of(name).pieces}
    except UndecodableMembersError:
        missing = True
    else:
        missing = not all(map(parts.has, names))
    return not missing or stack.control.row(place) != row  # evaluated and swept meanwhile


def _shows(stack: RunningStack, place: Place, row: SlotRow) -> bool:
    """Whether the object of true sets of the mark is there, if there is to be one."""
    return row.shown is None or stack.parts(place).has(row.shown) or stack.control.row(place) != row


@readable("tables")
def _tables(case: Case) -> Iterator[Finding]:
    """Whether Control, Statuses and states are of the same time: one transaction writes mark and horizon."""
    places = case.places
    older = [place.slot for place, row in places.items() if _is_older(case.stack, place, row)]
    gone = [slot for slot, row in case.configured.items() if row.run == 0 and (slot in older or slot in case.horizons)]
    lost = [
        slot
        for slot, row in case.configured.items()
        if row.horizon is not None and (slot not in case.horizons or case.horizons[slot].through < row.horizon.through)
    ]
    ahead = [
        slot
        for slot, row in case.configured.items()
        if slot in case.horizons and case.horizons[slot].through > (row.evaluated_through or 0)
    ]
    advice = "begin a new log generation: kanon operate new-generation"
    for slots, seen in (
        (gone, "Control has lost the rows, because it was emptied, restored or created again"),
        (older, "Control is older than the states"),
        (lost, "Statuses are older than Control"),
        (ahead, "Control is older than Statuses"),
    ):
        if slots and {*slots} & {place.slot for place, row in places.items() if _is_settled(case, place, row)}:
            yield Finding("tables", Verdict.FAIL, f"{slots_text(slots)}: {seen}", advice, Section.MIXTURE)
            return
    seen = "Control, Statuses and states are of the same time" if case.rows else "nothing is evaluated yet"
    yield Finding("tables", Verdict.OK, seen)


def _is_older(stack: RunningStack, place: Place, row: SlotRow) -> bool:
    """Whether objects have names of later runs than the slot ever had."""
    return any(run_of(name) > row.run for name in stack.parts(place).names())


def _is_settled(case: Case, place: Place, row: SlotRow) -> bool:
    """Whether nobody has changed the row since it was read: the other tables were read after it."""
    return case.stack.control.row(place) == row


# Progress


@readable("evaluation")
def _lag(case: Case) -> Iterator[Finding]:
    """The last evaluated step of each slot. Slots with the same finding share one line."""
    alike: dict[Finding, list[int]] = {}
    for slot, progress in case.configured.items():
        mark = _mark_before(slot, case) if progress.evaluated_through is None else progress.evaluated_through
        alike.setdefault(_lag_of(slot, mark, case), []).append(slot)
    for finding, slots in alike.items():
        yield replace(finding, seen=f"{slots_text(slots)}: {finding.seen}")


def _mark_before(slot: int, case: Case) -> int | None:
    """The last step evaluated by the slots that a slot continues; None if there is none.

    Otherwise a slot of a new layout that does not begin would look like one of a new stack.
    """
    layouts = case.stack.evaluate.layouts
    before = Place(layouts.next_step(slot, -1) or 0, slot).before(layouts)
    marks = [case.rows.get(place, SlotRow()).evaluated_through for place in before]
    return min((mark for mark in marks if mark is not None), default=None)


def _lag_of(slot: int, mark: int | None, case: Case) -> Finding:
    """The finding for a slot that is evaluated through ``mark``."""
    schedule, layouts = case.stack.schedule, case.stack.evaluate.layouts
    if mark is None:
        if not case.log_made or step_at(case.log_made, schedule.period) > schedule.due(case.now):
            return Finding("evaluation", Verdict.NOT_SEEN, "never evaluated: the next message starts it")
        seen = f"never evaluated, and the log is there since {moment(case.log_made)}"
        advice = "find out why evaluate is not called, or fails"
        return Finding("evaluation", Verdict.WARN, seen, advice, Section.EVALUATION_LATE)
    left = layouts.steps(slot, mark, schedule.last_closed(case.now))
    if not left and layouts.next_step(slot, mark) is None:
        return Finding("evaluation", Verdict.OK, f"evaluated through step {mark}, the last one of its layout")
    through = f"evaluated through step {mark} (to {moment(end_of(mark, schedule.period))}), {left} behind"
    if left and (layouts.next_step(slot, mark) or 0) < schedule.oldest_allowed(case.now):
        seen = f"{through}: more than the outage allowance minus its reserve, so joins may be lost"
        advice = "fix the cause, then run `kanon operate skip`"
        return Finding("evaluation", Verdict.FAIL, seen, advice, Section.GIVING_UP)
    if layouts.steps(slot, mark, schedule.due(case.now)):
        until = moment(schedule.allowed_until(mark + 1))
        advice = f"fix the cause: until {until} evaluation can still catch up by itself"
        return Finding("evaluation", Verdict.WARN, through, advice, Section.EVALUATION_LATE)
    return Finding("evaluation", Verdict.OK, f"evaluated through step {mark}, on time")


def _leases(case: Case) -> Iterator[Finding]:
    # A worker may take its lease after this command has read the clock, or its clock may be ahead.
    schedule = case.stack.schedule
    longest = case.now + schedule.lease + schedule.publish_margin
    held = {slot: p.lease_until for slot, p in case.configured.items() if p.lease_until is not None}
    too_long = [slot for slot, until in held.items() if until > longest]
    if too_long:
        until = moment(max(held[slot] for slot in too_long))
        seen = f"{slots_text(too_long)}: held until {until}, longer than a worker may hold it"
        advice = "the cause is an interrupted `kanon operate` command or a clock far ahead; the lease expires by itself"
        yield Finding("leases", Verdict.WARN, seen, advice, Section.LEASE)
        return
    dead = [slot for slot, until in held.items() if until < case.now]
    at_work = [slot for slot in held if slot not in dead]
    known = [f"{slots_text(at_work)} held by a worker"] if at_work else []
    known += [f"{slots_text(dead)} left by an interrupted worker; the next worker takes over"] if dead else []
    yield Finding("leases", Verdict.OK, "; ".join(known) or "no slot is held")


def _visible(case: Case) -> Iterator[Finding]:
    """Compare the horizons with the marks: an evaluation moves the horizon first, then the mark."""
    marks = {slot: p.evaluated_through for slot, p in case.configured.items() if p.evaluated_through is not None}
    short = [slot for slot, mark in marks.items() if slot not in case.horizons or case.horizons[slot].through < mark]
    period, delay = case.stack.schedule.period, case.stack.schedule.publish_delay
    far = [slot for slot, horizon in case.horizons.items() if horizon.visible_from > case.now + 2 * period + delay]
    if far:
        seen = f"{slots_text(far)}: visible only from a tick far ahead, because a clock was wrong"
        yield Finding("answers", Verdict.WARN, seen, "answers do not change until then", Section.PUBLISH_LATE)
    if short:
        seen = f"{slots_text(short)}: not yet visible up to the mark; the next evaluation moves the horizon"
        yield Finding("answers", Verdict.OK, seen)
    elif not far:
        yield Finding("answers", Verdict.OK, "visible up to the mark, from the tick on" if marks else "none yet")


def _beyond(case: Case) -> Iterator[Finding]:
    settings, layouts = case.stack.evaluate, case.stack.evaluate.layouts
    beyond = sorted({place.slot for place in case.rows} - {*layouts.slots})
    if missing := missing_layouts(case.recorded["evaluate"], layouts):
        first = min(missing)
        begins = moment(first * settings.period)
        seen = f"the entry from step {first} ({begins}) on is recorded and not configured: evaluation stops before it"
        verdict = Verdict.FAIL if first <= case.stack.schedule.last_closed(case.now) else Verdict.WARN
        advice = f"deploy again with Slots='{_parameter(*settings.slots, *starmap(_slots_entry, missing.items()))}'"
        yield Finding("slots", verdict, seen, advice, Section.ROLLED_BACK)
    elif beyond:
        seen = f"{slots_text(beyond)}: evaluated before, but only {len(layouts.slots)} slots are configured"
        yield Finding("slots", Verdict.FAIL, seen, UNDO, Section.EVALUATION_STOPPED)
    else:
        yield Finding("slots", Verdict.OK, f"{_entries_text(layouts)}; no others recorded")


# Queues and schedule


def _queues(case: Case) -> Iterator[Finding]:
    queue = case.stack.client("sqs")
    for check, url, most, advice, section in (
        ("queue", case.stack.evaluate.queue_url, 2 * len(case.stack.evaluate.layouts.slots),
         "messages wait for workers: raise MaximumConcurrency", Section.PUBLISH_LATE),
        ("dead letters", case.stack.dead_letters_url, 0, "find the cause, then purge the queue", Section.DEAD_LETTERS),
        ("lost events", case.stack.lost_events_url, 0, "find the cause, then purge the queue", Section.DEAD_LETTERS),
    ):  # fmt: skip
        yield queue_finding(check, queue, url, most, advice, section)


def _schedule(case: Case) -> Iterator[Finding]:
    if case.stack.endpoint is not None:
        yield Finding("schedule", Verdict.NOT_SEEN, "a local stack starts its evaluation itself")
        return
    advice = "enable it, or deploy again: nothing else starts the evaluation"
    client, name = case.stack.client("scheduler"), case.stack.schedule_name
    yield schedule_finding("schedule", client, name, advice, Section.EVALUATION_LATE)


def _protection(case: Case) -> Iterator[Finding]:
    """The first deployment leaves deletion protection off, so that it can fail and leave nothing behind."""
    if case.stack.protected is None:
        yield Finding("deletion protection", Verdict.NOT_SEEN, "the stack's parameters do not name it")
    elif case.stack.protected:
        yield Finding("deletion protection", Verdict.OK, "on")
    else:
        advice = "the first deployment succeeded: set DeletionProtection=ON and deploy again"
        yield Finding("deletion protection", Verdict.WARN, "off", advice)


CHECKS: tuple[Callable[[Case], Iterable[Finding]], ...] = (
    _environments,
    _fingerprints,
    _types,
    _noise_keys,
    _log_generations,
    _forgetting,
    _bucket,
    _states,
    _tables,
    _lag,
    _leases,
    _visible,
    _beyond,
    _queues,
    _schedule,
    _protection,
)


def _entries_text(layouts: Layouts) -> str:
    """``1``, or ``1, and 16 from step 494000 on``."""
    first, *later = layouts.entries
    return ", and ".join([str(first), *(f"{layout} from step {layout.from_step} on" for layout in later)])


def _slots_entry(from_step: int, text: str) -> SlotsEntry:
    """The entry that is recorded as ``text``."""
    slots, _, partitions = text.partition(" x ")
    return SlotsEntry(slots=int(slots), partitions=int(partitions) if partitions else None, from_step=from_step)


def _parameter(*entries: SlotsEntry | NoiseKeyEntry | LogGenerationEntry) -> str:
    """Entries as the value of a parameter, oldest first."""
    ordered = sorted(entries, key=lambda entry: entry.from_step)
    return json.dumps([entry.model_dump(exclude_none=True) for entry in ordered], separators=(",", ":"))


def slots_text(slots: Sequence[int]) -> str:
    """``slot 3``, or ``slots 0-4, 7``."""
    runs: list[list[int]] = []
    for slot in sorted(slots):
        if runs and slot == runs[-1][-1] + 1:
            runs[-1].append(slot)
        else:
            runs.append([slot])
    texts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    return f"slot{'s' if len(slots) > 1 else ''} {', '.join(texts)}"
