"""``kanon explain``: explains why a set reads false, step by step from the join to the answer.

It reads Control, Statuses and, for ``joins``, StepLog and the part of the set. Its output holds no count, client, token
or key, and nothing about answers that are not visible yet. It says what the visible answers of the set were.
With ``joins`` it also says whether the set was joined, and in which step: this is not private.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from kanon.findings import moment
from kanon.gate.deciding import Keys, in_range
from kanon.gate.fingerprints import RETIRED
from kanon.gate.generations import in_force
from kanon.gate.mechanism.searches import Search, Searches
from kanon.gate.mechanism.steps import end_of, step_at
from kanon.gate.mechanism.tape import following
from kanon.gate.merging import UNKNOWN
from kanon.gate.names import set_key
from kanon.gate.querying import Answer, Querying
from kanon.gate.slots import Layouts
from kanon.gate.storage.aws.control import Place, SlotRow
from kanon.gate.storage.aws.step_joins import StepJoins
from kanon.gate.types import Type
from kanon.keys import Secret, fetch_secret
from kanon.operate.stacks import RunningStack
from kanon.operate.states import pieces_of

PERMISSIONS = (
    "cloudformation:DescribeStacks on the stack; lambda:GetFunctionConfiguration on its three functions;"
    " secretsmanager:GetSecretValue on the set pepper; dynamodb:GetItem on Control, BatchGetItem on Statuses,"
    " Query on StepLog; s3:GetObject on the bucket of states; kms:Decrypt on the key, through DynamoDB, S3"
    " and Secrets Manager"
)
"""The permissions of the command. No role of a function has all of them."""


class Effect(StrEnum):
    """The reply to a question: ``FALSE`` alone is enough for the set to read false."""

    FINE = "fine"
    WAIT = "wait"
    FALSE = "false"


@dataclass(frozen=True)
class Explained:
    """A question on the way from a join to an answer, the reply, and what to do."""

    question: str
    reply: Effect
    seen: str
    advice: str = ""


@dataclass(frozen=True)
class Explanation:
    """The status of the set now, and the reasons; None if query refuses to answer."""

    status: bool | None
    findings: tuple[Explained, ...]


@dataclass(frozen=True)
class _Case:
    """A set of a configured type, and its data at ``now`` (Unix s), each read once and only if needed."""

    stack: RunningStack
    types: dict[str, Type]
    type_: Type
    pepper: Secret
    set_id: bytes
    now: float
    joins: bool

    @cached_property
    def key(self) -> bytes:
        return set_key(self.pepper, self.type_.name, self.set_id)

    @property
    def window(self) -> int:
        return self.type_.parameters.window

    @property
    def period(self) -> int:
        return self.stack.schedule.period

    @property
    def open_step(self) -> int:
        """The step that joins enter now."""
        return step_at(self.now, self.period)

    @property
    def layouts(self) -> Layouts:
        return self.stack.evaluate.layouts

    @cached_property
    def slot(self) -> int:
        """The slot of the set at the newest step that must be evaluated by now."""
        return self.layouts.at(self.stack.schedule.due(self.now)).slot_of(self.key)

    @cached_property
    def place(self) -> tuple[Place, SlotRow]:
        """The slot of the newest layout that has evaluated a step of the set, and its row."""
        for layout in reversed(self.layouts.entries):
            place = Place(layout.from_step, layout.slot_of(self.key))
            row = self.stack.control.row(place)
            if row.evaluated_through is not None:
                break
        return place, row

    @property
    def mark(self) -> int | None:
        """The last evaluated step of the set's slot."""
        return self.place[1].evaluated_through

    def behind(self, last: int) -> int:
        """The steps up to ``last`` that the slot has not evaluated."""
        return 0 if self.mark is None else self.layouts.steps(self.slot, self.mark, last)

    @cached_property
    def counted(self) -> bool:
        """Whether an evaluated join of the set is still in the window."""
        place, row = self.place
        parts, own = self.stack.parts(place), Keys(self.key, following(self.key))
        for piece, keys in in_range(pieces_of(self.stack, place, row), own):
            if piece.name and bool((keys.of(parts.read(piece)).lasts > self.open_step - self.window).any()):
                return True
        return False

    @cached_property
    def waiting(self) -> tuple[int, ...]:
        """The steps not evaluated yet in which the set was joined. They are looked up for ``joins`` only."""
        if not self.joins:
            return ()
        oldest = self.stack.schedule.oldest_in_log(self.now)
        first = oldest if self.mark is None else max(oldest, self.mark + 1)
        return tuple(step for step in range(first, self.open_step + 1) if self._joined_at(step))

    def _joined_at(self, step: int) -> bool:
        numbers = dict.fromkeys(self.types, UNKNOWN) | self.stack.control.type_numbers(())
        with StepJoins(self.stack.log, self.layouts.at(step).slot_of(self.key), numbers) as joins:
            return bool(len(joins.joins(step, self.key, following(self.key))))

    @cached_property
    def answer(self) -> Answer:
        """The current answer of the function query, however old its step is."""
        query = self.stack.query
        return Querying(
            self.types, self.pepper, self.stack.statuses, query.period, query.layouts, query.publish_delay, None
        ).query([(self.type_.name, self.set_id)], self.now)

    @property
    def visible(self) -> int | None:
        """The last step whose answers are visible."""
        return self.answer.step

    @property
    def stale(self) -> bool:
        """Whether query refuses to answer, because the visible step is too old."""
        stale = self.type_.parameters.stale_after(self.stack.query.max_stale)
        due = self.stack.schedule.due(self.now)
        return stale is not None and self.visible is not None and due >= self.visible + stale

    @cached_property
    def searches(self) -> Searches:
        """The searches of the set; a generation that begins after the visible step does not count yet."""
        generation = in_force(self.stack.evaluate.log_generations)
        begun = None if generation is None else generation.from_step
        seen = begun is not None and self.visible is not None and self.visible >= begun
        return Searches.of(self.type_.parameters, self.key, begun if seen else None)

    @cached_property
    def crossings(self) -> tuple[int, ...]:
        """The visible crossings, oldest first. Suppression is ignored."""
        stored = self.stack.statuses.crossings([self.key]).get(self.key, ())
        return tuple(x for x in stored if self.visible is not None and x <= self.visible)

    @property
    def instance(self) -> Search:
        """The instance of the current answers, of a type on a grid."""
        return self.searches.at(self.stack.schedule.due(self.now), None)

    def begins(self, step: int) -> str:
        """The moment at which a step begins."""
        return moment(end_of(step - 1, self.period))


def explain(stack: RunningStack, type_name: str, set_id: bytes, now: float, *, joins: bool = False) -> Explanation:
    """Explain the answer for a set at ``now`` (Unix s).

    With ``joins`` it begins with the joins of the set. Then it reveals whether somebody joined, and in which step.

    Raises:
        BotoCoreError, ClientError: something cannot be read.
        ThrottledError: something was not answered; run again.
        UndecodableMembersError: the state of the set cannot be decoded.
    """
    unknown = _type(stack, type_name)
    types = stack.evaluate.read_types()
    if type_name not in types:
        return Explanation(status=False, findings=(unknown,))
    pepper = fetch_secret(stack.client("secretsmanager"), "set-pepper", stack.query.set_pepper_secret)
    case = _Case(stack, types, types[type_name], pepper, set_id, now, joins)
    return Explanation(
        None if case.stale else case.answer.above[0],
        (unknown, *(check(case) for check in (OF_JOINS if joins else ()) + CHECKS)),
    )


def _type(stack: RunningStack, name: str) -> Explained:
    question = "Is the type configured?"
    lacking = [
        part
        for part, settings in (("join", stack.join), ("query", stack.query), ("evaluate", stack.evaluate))
        if name not in settings.read_types()
    ]
    if f"{RETIRED}{name}" in stack.control.recorded("evaluate"):
        return Explained(
            question, Effect.FALSE, "it is retired", "use another type: a retired name cannot be used again"
        )
    if len(lacking) == 3:
        return Explained(question, Effect.FALSE, "no", "check the name, or add the type to Types and deploy")
    if lacking:
        return Explained(question, Effect.FALSE, f"not in {', '.join(lacking)}", "deploy again: it was interrupted")
    return Explained(question, Effect.FINE, "yes")


def _joined(case: _Case) -> Explained:
    question = "Did a client join the set within the window?"
    if case.counted or case.waiting:
        return Explained(question, Effect.FINE, "yes")
    seen = f"no join of the last {case.window} steps is in the tables"
    advice = (
        "compare the set id of the joins with this one: the same bytes, the same type; and check the answers to joins"
    )
    return Explained(question, Effect.FALSE, seen, advice)


def _closed(case: _Case) -> Explained:
    question = "Has the step of its joins ended?"
    if case.waiting and not case.counted and case.waiting[0] == case.open_step:
        end = end_of(case.open_step, case.period)
        advice = f"wait: it ends at {moment(end)} and closes {case.stack.schedule.grace} s later"
        return Explained(question, Effect.WAIT, "not yet: all joins are in the current step", advice)
    return Explained(question, Effect.FINE, "yes" if case.counted or case.waiting else "no step to wait for")


def _evaluated(case: _Case) -> Explained:
    question, schedule = "Is the set's slot evaluated?", case.stack.schedule
    if case.mark is None:
        advice = "wait for the schedule; if it stays so, run kanon doctor"
        return Explained(question, Effect.WAIT, "never: the stack is new", advice)
    if case.behind(schedule.due(case.now)):
        steps = case.behind(schedule.last_closed(case.now))
        seen = f"only through step {case.mark}, {steps} steps behind: its answers are old"
        return Explained(question, Effect.WAIT, seen, "run kanon doctor: it names the cause")
    return Explained(question, Effect.FINE, f"through step {case.mark}, on time")


def _visible(case: _Case) -> Explained:
    question, closed = "Are the results visible?", [step for step in case.waiting if step < case.open_step]
    newest = case.mark if case.mark is not None and not closed else None
    tick = f"the next tick is at {moment(case.answer.next_update)}"
    if case.visible is None:
        return Explained(question, Effect.WAIT, "none yet", f"wait: {tick}")
    if case.stale:
        seen = f"only through step {case.visible}, too old: query answers 503 until a later step is visible"
        return Explained(question, Effect.WAIT, seen, "run kanon doctor: it names the cause")
    if newest is None or case.visible < newest:
        seen = f"through step {case.visible}; later joins show at a later tick"
        return Explained(question, Effect.WAIT, seen, f"wait: {tick}")
    return Explained(question, Effect.FINE, f"through step {case.visible}; {tick}")


def _suppressed(case: _Case) -> Explained:
    question = "Is the set not suppressed?"
    if case.stack.statuses.is_suppressed(case.key):
        return Explained(question, Effect.FALSE, "it is suppressed", "kanon operate unsuppress TYPE/SET ends it")
    return Explained(question, Effect.FINE, "it is not suppressed")


def _crossed(case: _Case) -> Explained:
    if case.type_.parameters.restart is not None:
        return _crossed_before(case)
    question, now = "Has it crossed the noisy threshold in this instance?", case.instance
    if any(case.searches.is_true(x, now.first) for x in case.crossings):
        until = case.begins(now.last + 1)
        return Explained(question, Effect.FINE, f"yes: it is true until {until}, when the instance ends")
    before = any(case.searches.is_true(x, now.first - 1) for x in case.crossings)
    ago = " It was true in the instance before." if before else ""
    seen = f"not visibly since {case.begins(now.first)}, when the instance began with new noise.{ago}"
    return Explained(question, Effect.FALSE, seen, _more_clients(case))


def _crossed_before(case: _Case) -> Explained:
    """The same for a type with restart after the crossing."""
    question = "Has it crossed the noisy threshold, and does its status last?"
    if case.visible is None:
        return Explained(question, Effect.FALSE, "no step is visible yet", _more_clients(case))
    newest = case.crossings[-1] if case.crossings else None
    if newest is not None and case.searches.is_true(newest, case.visible):
        until = case.begins(case.searches.last_true(newest) + 1)
        return Explained(question, Effect.FINE, f"yes: it is true until {until}, and then searches again")
    search = case.searches.at(case.visible, newest)
    ago = "" if newest is None else f" It was true until {case.begins(case.searches.last_true(newest) + 1)}."
    since = case.begins(case.searches.counts_from(search, case.visible))
    seen = (
        f"not visibly since {case.begins(search.first)}, when its search began with new noise; joins count from"
        f" {since} on.{ago}"
    )
    return Explained(question, Effect.FALSE, seen, _more_clients(case))


def _more_clients(case: _Case) -> str:
    p = case.type_.parameters
    return (
        f"more clients: below {p.never_true_below} distinct tokens in {p.window} steps a set is never true, from"
        f" {p.surely_true_from} on it always is, between them the noise decides (kanon plan)"
    )


OF_JOINS: tuple[Callable[[_Case], Explained], ...] = (_joined, _closed)
CHECKS: tuple[Callable[[_Case], Explained], ...] = (_evaluated, _visible, _suppressed, _crossed)
"""The questions, in the order from joins to answers."""
