"""What the clients do, without input and output.

A call is a generator: it yields each ``Attempt`` and is sent its answer, or the ``NoAnswerError`` of it. Clients with
and without ``async`` run the same generators.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import quote

from kanon.client import answers, waiting
from kanon.client.answers import Answers, Join, ListedValue, Released, Request, Status, request
from kanon.client.connection import Reply
from kanon.client.errors import (
    ApiError,
    NoAnswerError,
    PartlyRefusedError,
    RefusedError,
    UnexpectedAnswerError,
    UnknownTypeError,
)
from kanon.client.ranges import Ranges
from kanon.client.values import SetId, Value, bucket_of, decoded, value_id

if TYPE_CHECKING:
    from kanon.client.anonymous import Anonymous
    from kanon.client.auth import Auth
    from kanon.reports.clients.devices import Device, Windows
    from kanon.reports.clients.encrypt import CachedKeys, Outgoing

JOINS_A_CALL = 500
LISTED_A_CALL = 100
"""Joins that may have values of 512 bytes: as JSON, and padded for a relay, they have less than the limit of 1 MiB."""
HASHES_A_CALL = 100
"""The default limit of hashes in a query without a signature."""
HASHES_A_SIGNED_CALL = 1000
DEADLINE = 30.0
"""Seconds for one call of the API, its repetitions included."""
TYPES_KEPT = 60.0
"""Seconds before an unknown type makes a client ask for the types again."""
MOST_KEPT = 100_000
"""Kept answers; the oldest ones go first."""
TOO_MANY = 429
"""The status of a request that was not looked at."""
GATEWAY_KEYS = request("GET", "/v1/proxy/keys")
PUBLIC_KEYS = "/.well-known/aggregation-service/v1/public-keys"

ATTEMPTS = 3
"""How often a client begins again when the list that it reads is replaced."""
Private = bool | Literal["all"]
"""Whether a look-up reads range files: those with its values, or all of them."""

_T = TypeVar("_T")
_LOCK = threading.Lock()
"""Held while a state changes, never during a request: one for all clients, which a fork finds free."""
os.register_at_fork(before=_LOCK.acquire, after_in_parent=_LOCK.release, after_in_child=_LOCK.release)


def check_options(
    service: object, auth: Auth | None, reports: Windows | None, relay: str | None, anonymous: Anonymous | None
) -> None:
    """Refuse to name the caller beside a credential, and a relay for what it does not forward.

    Raises:
        ValueError: ``auth`` with a credential; a transport, or reports, with a relay.
    """
    if auth is not None and anonymous is not None:
        raise ValueError("auth names the caller of each join: give it to anonymous.enrol alone")
    if relay is not None and not isinstance(service, str):
        raise ValueError("a relay needs the address of the service, not a transport")
    if relay is not None and reports is not None:
        raise ValueError("reports go through no relay: send them with a client of their own, without relay")


class Attempt(NamedTuple):
    """Make a request after so many seconds, send it, and wait at most ``within`` seconds; None: as long as usual."""

    make: Callable[[], Request]
    after: float
    within: float | None


Steps = Generator[Attempt, Reply, _T]


@dataclass
class Calls:
    """The state of a client, and its calls.

    Attributes:
        deadline: seconds for one call of the API with its repetitions; 0: no call is repeated.
        spread: the largest number of seconds that an answer is kept beyond ``nextUpdate``; None: a tenth of a step.
        reports: the parameters of ``contribute``.
        anonymous: the credential for types that need one.
        relayed: whether joins go through a relay, so each waits for a random time.
        clock: seconds that never go back.
        now: unix seconds.
        random: uniform in [0, 1).
    """

    deadline: float = DEADLINE
    spread: float | None = None
    reports: Windows | None = None
    anonymous: Anonymous | None = None
    relayed: bool = False
    clock: Callable[[], float] = time.monotonic
    now: Callable[[], float] = time.time
    random: Callable[[], float] = waiting.chance
    _types: dict[str, dict[str, Any]] = field(default_factory=dict)
    _types_until: float | None = None
    _kept: dict[tuple[str, SetId], tuple[bool, float]] = field(default_factory=dict)
    _ranges: dict[str, Ranges] = field(default_factory=dict)
    _keys: CachedKeys | None = None
    _device: Device[None] | None = None
    _joined: tuple[int, frozenset[tuple[str, int]]] = (0, frozenset())

    def __post_init__(self) -> None:
        if not (self.deadline >= 0 and (self.spread is None or self.spread >= 0)):
            raise ValueError("deadline and spread are seconds: give 0 or more")

    # Joining

    def join(self, type_: str, value: Value, client: str | int | None, delay: float | None) -> Steps[None]:
        """Join the set of a value as one client, or with a credential, after so many seconds."""
        if delay is not None and not 0 <= delay < float("inf"):
            raise ValueError("delay is a number of seconds: give 0 or more")
        described = yield from self.prepare(type_)
        hides = self.relayed or described.get("credential", False)
        if delay is None and hides:
            yield from self._join_hidden(described, value, client)
        else:
            yield from self._join(described, value, client, delay or 0.0, self.deadline)

    def _join_hidden(self, described: Mapping[str, Any], value: Value, client: str | int | None) -> Steps[None]:
        """Join after a random part of a step; after a failure again, for a step.

        The service must not choose the time, and after an outage those that wait must not all come at once.
        """
        period, failed = described["period"], 0
        after, end = self.random() * period, self.clock() + 2 * period
        while True:
            try:
                return (yield from self._join(described, value, client, after, 0.0))
            except ApiError as error:
                failed += 1
                left = min(period, end - self.clock())
                after = max(self.random() * left, waiting.wait(failed, self.random(), None))
                busy = isinstance(error, RefusedError) and error.code in waiting.REPEATED
                again = self.deadline and (busy or isinstance(error, NoAnswerError))
                if not again or self.clock() + after >= end:
                    raise

    def join_prepared(self, type_: str, value: Value, client: str | int | None) -> Steps[None]:
        """Join at once and once; ``prepare`` has asked for all else."""
        described = yield from self._described(type_)
        yield from self._join(described, value, client, 0.0, 0.0)

    def prepare(self, type_: str) -> Steps[Mapping[str, Any]]:
        """Ask for what a join needs, and return the description of its type.

        The service sees the address of a client that asks for its key. So this comes before the wait of a join.
        """
        if self.relayed:
            answers.read_nothing(GATEWAY_KEYS, (yield from self._answered(GATEWAY_KEYS)))
        return (yield from self._described(type_))

    def _join(
        self, described: Mapping[str, Any], value: Value, client: str | int | None, after: float, deadline: float
    ) -> Steps[None]:
        """Join after so many seconds. Each attempt names the client again: a presentation is for one step."""

        def make() -> Request:
            named = self._named(described, value, client)
            return answers.join_request(described["type"], value, named, listed=described.get("listed", False))

        asked = make()  # what cannot be sent is refused before the wait
        end = self.clock() + (after + deadline if deadline else 0.0)  # without a deadline once
        reply = yield from self._answered(make, end, after)
        if reply.status == 404 and not self.relayed:
            yield from self._check_types({described["type"]})
        answers.read_nothing(asked, reply)

    def _named(self, described: Mapping[str, Any], value: Value, client: str | int | None) -> Mapping[str, Any]:
        """How a join that is sent now names its client."""
        type_ = described["type"]
        if described.get("credential", False):
            if client is not None or self.anonymous is None:
                raise ValueError(f"type {type_!r} needs a credential: give Client(..., anonymous=), and join no client")
            now = self.now()
            step = waiting.join_step(now, described["period"])
            return self.anonymous.presentation(type_, decoded(value_id(value)), step, now)
        if client is None:
            raise ValueError(f"type {type_!r} needs no credential: give a client")
        return answers.client_field(client)

    def join_many(self, joins: Iterable[Join]) -> Steps[None]:
        """Send joins, at most 500 per call."""
        joins = list(joins)
        for type_ in {join.type for join in joins}:
            if (yield from self._described(type_)).get("credential", False):
                raise ValueError(f"type {type_!r} needs a credential: join one set at a time")
        results = yield from self.batch_join(joins)
        if refused := {n: error for n, error in enumerate(results) if error is not None}:
            raise PartlyRefusedError(refused, len(results))

    def batch_join(self, joins: Iterable[Join]) -> Steps[list[RefusedError | None]]:
        """The result of each join; those that the service could not log are repeated."""
        results: list[RefusedError | None] = []
        for some in _groups(joins, JOINS_A_CALL):
            entries = [answers.batch_entry(join, listed=self._listed(join.type)) for join in some]
            at_once = LISTED_A_CALL if any(self._listed(join.type) for join in some) else JOINS_A_CALL
            for part in _groups(entries, at_once):
                results += yield from self._batch(part)
        return results

    def _batch(self, entries: Sequence[object]) -> Steps[list[RefusedError | None]]:
        results: dict[int, RefusedError | None] = {}
        left = list(range(len(entries)))
        end, failed, after = self.clock() + self.deadline, 0, 0.0
        while left:
            asked = request("POST", "/v1:batchJoin", {"joins": [entries[n] for n in left]})
            try:
                reply = yield from self._answered(asked, end, after)
                results.update(zip(left, answers.read_batch(asked, reply, len(left)), strict=True))
            except ApiError:
                if not results:
                    raise
                break  # of those that are left the answer before holds
            left = [n for n in left if (error := results[n]) is not None and error.code == 503]
            failed += 1
            after = waiting.wait(failed, self.random(), waiting.retry_after(reply.headers))
            if self.clock() + after >= end:
                break
        return [results[n] for n in range(len(entries))]

    # Querying

    def is_shared(self, type_: str, values: Iterable[Value], private: Private = False) -> Steps[frozenset[Value]]:
        """Those of the values that the crowd shares, from kept answers where there are any."""
        if isinstance(values, str | bytes):
            raise TypeError("is_shared takes a list of values: put a single one into brackets")
        if private not in (True, False, "all"):
            raise ValueError(f'private is True, False or "all", not {private!r}')
        ids = {value: value_id(value) for value in values}
        if private:
            return (yield from self._privately(type_, ids, private))
        described = yield from self._described(type_)
        spread = described["period"] / 10 if self.spread is None else self.spread
        found = {id_: self.known(type_, id_) for id_ in ids.values()}
        for some in _groups((id_ for id_, shared in found.items() if shared is None), HASHES_A_CALL):
            asked = request("POST", "/v1:query", {"setsForType": [{"type": type_, "hashes": some}]})
            reply = yield from self._of_types(asked, {type_})
            true, _ = answers.read_query(asked, reply, {type_: some})
            found |= {id_: (type_, id_) in true for id_ in some}
            self._keep(type_, {id_: bool(found[id_]) for id_ in some}, reply, spread)
        return frozenset(value for value, id_ in ids.items() if found[id_])

    def _privately(self, type_: str, ids: dict[Value, SetId], private: Private) -> Steps[frozenset[Value]]:
        """The same from range files."""
        digests = {value: decoded(id_) for value, id_ in ids.items()}
        if any(len(digest) != sha256().digest_size for digest in digests.values()):
            raise ValueError("only the sets of values are in range files: their ids are SHA-256")
        for _ in range(ATTEMPTS):
            ranges = yield from self._newest(type_)
            needed = set(ranges.names() if private == "all" else map(ranges.name, digests.values()))
            if (yield from self._loaded(type_, ranges, needed)):
                return frozenset(value for value, digest in digests.items() if ranges.has(digest))
            self._ranges.pop(type_, None)  # the next list was published meanwhile
        raise UnexpectedAnswerError(f"the lists of type {type_!r} change faster than they can be read")

    def _newest(self, type_: str) -> Steps[Ranges]:
        """The newest list of a type, without its files."""
        ranges = self._ranges.get(type_)
        if ranges is None or self.clock() >= ranges.until:
            asked = request("GET", f"/v1/types/{quote(type_, safe='')}/ranges")
            reply = yield from self._of_types(asked, {type_})
            step, bits = answers.read_pointer(asked, reply)
            ages = waiting.ages(reply.headers)
            until = self.clock() + (waiting.kept(*ages, 0.0, 0.0) if ages else 0.0)
            same = ranges is not None and (ranges.step, ranges.bits) == (step, bits)
            ranges = Ranges(step, bits, until, ranges.files if ranges is not None and same else {})
            self._ranges[type_] = ranges
        return ranges

    def _loaded(self, type_: str, ranges: Ranges, needed: Iterable[str]) -> Steps[bool]:
        """Read the files that are needed; False if the list is gone."""
        for name in sorted(set(needed) - ranges.files.keys() if ranges.step is not None else ()):
            asked = request("GET", f"/v1/types/{quote(type_, safe='')}/ranges/{ranges.step}/{name}")
            reply = yield from self._answered(asked)
            if reply.status == 404:
                return False
            ranges.files[name] = answers.read_range(asked, reply, type_, ranges)
        return True

    def released(self, type_: str) -> Steps[Released]:
        """All values of a listed type that the crowd shares."""
        for _ in range(ATTEMPTS):
            values: list[ListedValue] = []
            following: str | None = ""
            while following is not None:
                begins = f"?after={following}" if following else ""
                asked = request("GET", f"/v1/types/{quote(type_, safe='')}/released{begins}")
                reply = yield from self._of_types(asked, {type_})
                if following and reply.status == 404:
                    break  # a reader that is so slow begins again
                some, step, following = answers.read_released(asked, reply)
                values += some
            else:
                return Released(tuple(values), step)
        raise UnexpectedAnswerError(f"the lists of type {type_!r} change faster than they can be read")

    def known(self, type_: str, value: Value) -> bool | None:
        """The kept answer for a value; None if there is none that still holds."""
        shared, until = self._kept.get((type_, value_id(value)), (None, 0.0))
        return shared if self.clock() < until else None

    def _keep(self, type_: str, found: dict[SetId, bool], reply: Reply, spread: float) -> None:
        """Keep answers until the next update, and all of one answer for the same random time longer."""
        ages = waiting.ages(reply.headers)
        if ages is None:
            return
        until = self.clock() + waiting.kept(*ages, spread, self.random())
        with _LOCK:
            for id_, shared in found.items():
                self._kept.pop((type_, id_), None)
                self._kept[type_, id_] = shared, until
            for oldest in list(islice(self._kept, max(0, len(self._kept) - MOST_KEPT))):
                del self._kept[oldest]

    def query(self, path: str, name: str, sets: Iterable[tuple[str, str]], at_once: int) -> Steps[Answers]:
        """Which of these sets, given as (type, set), are k-anonymous."""
        true: set[answers.SetOfType] = set()
        steps: list[int | None] = []
        for some in _groups(sets, at_once):
            by_type: dict[str, list[str]] = defaultdict(list)
            for type_, set_ in some:
                by_type[type_].append(set_)
            asked = request("POST", path, {name: [{"type": t, "hashes": hashes} for t, hashes in by_type.items()]})
            reply = yield from self._of_types(asked, by_type.keys())
            found, step = answers.read_query(asked, reply, by_type)
            true |= found
            steps.append(step)
        return Answers(frozenset(true), answers.earliest(steps))

    def status(self, type_: str, set_: str) -> Steps[Status]:
        """Whether one set is k-anonymous."""
        asked = request("GET", answers.path_of(type_, set_))
        return answers.read_status(asked, (yield from self._of_types(asked, {type_})))

    # Types

    def types(self) -> Steps[list[dict[str, Any]]]:
        """The types and their guarantees."""
        asked = request("GET", "/v1/types")
        return answers.read_types(asked, (yield from self._answered(asked)))

    def type(self, name: str) -> Steps[dict[str, Any]]:
        """One type."""
        return (yield from self.call("GET", f"/v1/types/{quote(name, safe='')}"))

    def _of_types(self, asked: Request, names: Collection[str]) -> Steps[Reply]:
        """The answer to a request about these types. One that the service does not have any more raises."""
        reply = yield from self._answered(asked)
        if reply.status == 404:
            yield from self._check_types(names)
        return reply

    def _check_types(self, names: Collection[str]) -> Steps[None]:
        """Raise if the service does not have one of these types any more."""
        known = [type_["type"] for type_ in (yield from self.types())]
        for name in sorted(set(names) - set(known)):
            raise UnknownTypeError(name, known)

    def _described(self, name: str) -> Steps[dict[str, Any]]:
        """The description of a type, asked for once."""
        if name not in self._types and (self._types_until is None or self.clock() >= self._types_until):
            self._types = {type_["type"]: type_ for type_ in (yield from self.types())}
            self._types_until = self.clock() + TYPES_KEPT
        if name not in self._types:
            raise UnknownTypeError(name, self._types)
        return self._types[name]

    def _listed(self, name: str) -> bool:
        """Whether a type is listed, as far as it was described."""
        return bool(self._types.get(name, {}).get("listed", False))

    # Reports

    def contribute(self, value: Value, amount: int) -> Steps[bool]:
        """Encrypt a contribution and send it."""
        report, fits = yield from self.seal(value, amount)
        yield from self.send(report)
        return fits

    def seal(self, value: Value, amount: int) -> Steps[tuple[Outgoing, bool]]:
        """The report of a contribution, and whether the contribution fits the budget of its window."""
        parameters = self.check_reports()
        from kanon.client import reporting

        now = int(self.now() * 1000)
        if self._keys is None or now >= self._keys.until:
            asked = request("GET", PUBLIC_KEYS)
            reply = yield from self._answered(asked)
            answers.read_object(asked, reply)
            with answers.reading(asked):
                self._keys = reporting.keys_of(reply, now)
        with _LOCK:
            now = int(self.now() * 1000)  # a later window may have begun while the keys came
            self._device, report = reporting.contribution_of(parameters, self._device, now, bucket_of(value), amount)
        return reporting.sealed(report, self._keys), bool(report.contributions) or amount == 0

    def seal_with_join(
        self, type_: str, value: Value, amount: int, client: str | int
    ) -> Steps[tuple[list[Outgoing], bool]]:
        """The report of a contribution, and the join of its value if it is the first one of its window."""
        from kanon.client import reporting

        parameters = self.check_reports()
        if parameters.sparsity is None:
            raise ValueError("a window has no limit of joins: give Windows(..., sparsity=20), or another number")
        described = yield from self._described(type_)
        if not described.get("listed", False):
            raise ValueError(f"type {type_!r} is not listed: use contribute, whose keys are declared or discovered")
        if described.get("credential", False):
            raise ValueError(f"type {type_!r} needs a credential, which is not for a later step: use join")
        join = answers.join_request(type_, value, answers.client_field(client), listed=True)
        report, fits = yield from self.seal(value, amount)
        delayed = [report._replace(scheduled=report.scheduled + secrets.randbelow(parameters.length))]
        if fits and amount and self._joins_now(report.scheduled, (type_, bucket_of(value))):
            begins = report.scheduled + secrets.randbelow(parameters.length)
            delayed.append(reporting.once(begins, join.path, join.body))
        return delayed, fits

    def _joins_now(self, window_end: int, key: tuple[str, int]) -> bool:
        """Whether no contribution of the window with this end has joined this set, type and key, before."""
        with _LOCK:
            joined = self._joined[1] if self._joined[0] == window_end else frozenset[tuple[str, int]]()
            self._joined = window_end, joined | {key}
        return key not in joined

    def check_reports(self) -> Windows:
        """The parameters of reports, if it can encrypt them."""
        from kanon.client import reporting  # noqa: F401, its error names the extra

        if self.reports is None:
            raise ValueError("this client sends no reports: give it reports=Windows('https://your.origin')")
        return self.reports

    def send(self, report: Outgoing) -> Steps[None]:
        """Send a report; the same bytes again until it is accepted. A join is tried once."""
        asked = Request("POST", report.path, report.body)
        end = self.clock() if report.once else None
        answers.read_nothing(asked, (yield from self._answered(asked, end)))

    def send_due(self, pending: Iterable[Outgoing], now: int) -> Steps[list[Outgoing]]:
        """Send the due reports; returns those to keep. Without an answer to one, no other one is tried."""
        kept: list[Outgoing] = []
        answered = True
        for report in pending:
            if report.scheduled > now or not answered:
                kept.append(report)
                continue
            try:
                yield from self.send(report)
            except ApiError as error:
                if not report.once or (isinstance(error, RefusedError) and error.code == TOO_MANY):
                    kept.append(report)
                answered = not isinstance(error, NoAnswerError)
        return kept

    # Any call

    def call(self, method: str, path: str, body: object = None) -> Steps[dict[str, Any]]:
        """Any call of the API; only those with GET are repeated."""
        asked = request(method, path, body)
        end = None if method == "GET" else self.clock()
        return answers.read_object(asked, (yield from self._answered(asked, end)))

    def _answered(
        self, asked: Request | Callable[[], Request], end: float | None = None, after: float = 0.0
    ) -> Steps[Reply]:
        """The answer to a request, which is repeated until ``end``; without one until the deadline.

        Every attempt sends the same bytes, or what a function makes then.
        """
        make = asked if callable(asked) else lambda: asked
        end = self.clock() + self.deadline if end is None else end
        failed = 0
        while True:
            reply, error = None, None
            remaining = end - self.clock() - after
            try:
                reply = yield Attempt(make, after, remaining if remaining > 0 else None)
            except NoAnswerError as no_answer:
                error = no_answer
            if reply is not None and reply.status not in waiting.REPEATED:
                return reply
            failed += 1
            after = waiting.wait(failed, self.random(), None if reply is None else waiting.retry_after(reply.headers))
            if self.clock() + after >= end:
                if reply is None:
                    assert error is not None
                    raise error
                return reply


def _groups(values: Iterable[_T], size: int) -> Iterator[Sequence[_T]]:
    remaining = iter(values)
    while group := list(islice(remaining, size)):
        yield group
