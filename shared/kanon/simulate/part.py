"""Computes the crossings of a part of a log that fits into memory. A part holds all joins of its sets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Self

import numpy as np

from kanon.gate.mechanism.columns import NEVER, ranks
from kanon.gate.mechanism.parameters import Parameters
from kanon.gate.mechanism.tape import Tapes
from kanon.gate.mechanism.vectorised import phases_of, searches_at
from kanon.gate.types import Type
from kanon.joinlog.numbered import Texts
from kanon.keys import Secret
from kanon.noise.words import NoiseKey, length_prefixed
from kanon.simulate.crossings import Crossings, crossings_of
from kanon.simulate.outcome import JoinedSteps, TypeOutcome, outcome_of
from kanon.simulate.presence import Bools, Ints, MemberJoins, Runs, distinct, runs_of, stretches_of
from kanon.simulate.rejoining import classes_of, costs_of

DEPLOYMENT = "kanon/simulate"
TOKEN_BITS = 32
"""Tokens are computed once with the most bits; a type uses the first of them."""

_SPARE = 16
"""So many clients beyond a certain count are looked at: of a hundred clients hardly ever as many share a token."""


def digest(text: bytes) -> bytes:
    """The set id that ``kanon demo`` and ``kanon.client.set_id`` use: the SHA-256 of the text."""
    return sha256(text).digest()


@dataclass(frozen=True)
class PartKeys:
    """The keys for the names of sets and clients, and for noise.

    They come from a seed, because the noise of a deployment must not be used for another log.
    """

    pepper: Secret
    client_key: Secret
    noise_key: NoiseKey
    deployment: str

    @classmethod
    def from_seed(cls, seed: int) -> Self:
        """The keys of a seed. They are not secret: with the seed, anybody can remove the noise."""

        def derived(name: str) -> Secret:
            return Secret.derived(name, f"{DEPLOYMENT}/{seed}")

        noise_key = NoiseKey("1", derived("noise-key/1").key)
        return cls(derived("set-pepper"), derived("client-key"), noise_key, DEPLOYMENT)

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the secrets only: prepared hash states cannot be sent to another process."""
        secrets = [Secret(secret.name, secret.key) for secret in (self.pepper, self.client_key)]
        return PartKeys, (*secrets, self.noise_key, self.deployment)


@dataclass(frozen=True)
class LogPart:
    """Sets, clients and their joins, by number.

    Attributes:
        sets: the text of each set.
        clients: the text of each client.
        set_of: the set of each pair (a client in a set), sorted, (pairs,).
        client_of: the client of each pair, (pairs,).
        joins: the distinct joins of the pairs.
        touched: the distinct (set, step).
    """

    sets: list[bytes]
    clients: list[bytes]
    set_of: Ints
    client_of: Ints
    joins: MemberJoins
    touched: JoinedSteps

    @classmethod
    def of(cls, steps: Ints, sets: Texts, clients: Texts) -> "LogPart":
        """The joins, (n,)."""
        sets, clients = sets.distinct(), clients.distinct()
        number = max(1, len(clients.texts))
        pairs, rows = np.unique(sets.numbers * number + clients.numbers, return_inverse=True)
        set_of = pairs // number
        return cls(
            sets.texts,
            clients.texts,
            set_of,
            pairs - set_of * number,
            MemberJoins.of(set_of, rows.astype(np.int64, copy=False), steps),
            JoinedSteps(*distinct(sets.numbers, steps)),
        )


class Macs:
    """``secret.mac`` of the same first parts and more: the key and these parts are hashed once (RFC 2104)."""

    def __init__(self, secret: Secret) -> None:
        self._pads = [sha256(bytes(byte ^ pad for byte in secret.key.ljust(64, b"\0"))) for pad in (0x36, 0x5C)]

    def of(self, *parts: bytes) -> Callable[[bytes], bytes]:
        """The MAC of these parts and of more, which are given with their lengths."""
        inner, outer = (pad.copy() for pad in self._pads)
        inner.update(length_prefixed(*parts))

        def mac(more: bytes) -> bytes:
            inside, outside = inner.copy(), outer.copy()
            inside.update(more)
            outside.update(inside.digest())
            return outside.digest()

        return mac


class KeysAndTokens:
    """The keys of the sets of a part, and the tokens of its pairs, for one type name: as ``join`` computes them.

    A token is hashed when it is needed first: most answers depend on few of them.
    """

    def __init__(self, part: LogPart, type_name: str, keys: PartKeys) -> None:
        set_key = Macs(keys.pepper).of(type_name.encode())
        self.set_keys = [set_key(length_prefixed(digest(text))) for text in part.sets]
        self._part, self._macs = part, Macs(keys.client_key)
        self._tokens = np.full(len(part.set_of), -1)

    def tokens(self, pairs: Ints) -> Ints:
        """The tokens of some pairs, :data:`TOKEN_BITS` each."""
        wanted = np.zeros(len(self._tokens), bool)
        wanted[pairs] = True
        self._hash(np.flatnonzero(wanted & (self._tokens < 0)))
        return self._tokens[pairs]

    def _hash(self, pairs: Ints) -> None:
        """:func:`client_token` of sorted pairs. What all clients of a set share is hashed once for the set."""
        found: list[bytes] = []
        last, mac = -1, self._macs.of()
        for number, client in zip(self._part.set_of[pairs].tolist(), self._part.client_of[pairs].tolist(), strict=True):
            if number != last:
                last, mac = number, self._macs.of(self.set_keys[number], b"client")
            found.append(mac(length_prefixed(self._part.clients[client])))
        self._tokens[pairs] = np.frombuffer(b"".join(found), ">u4")[:: 32 // 4]


def outcomes(part: LogPart, types: Sequence[Type], keys: PartKeys, steps: range) -> list[TypeOutcome]:
    """The outcome of each type on the sets of a part."""
    keyed = {name: KeysAndTokens(part, name, keys) for name in dict.fromkeys(type_.name for type_ in types)}
    runs = {window: runs_of(part.joins, window) for window in dict.fromkeys(t.parameters.window for t in types)}
    return [_outcome(part, keyed[t.name], t, keys, steps, runs[t.parameters.window]) for t in types]


def _outcome(part: LogPart, keyed: KeysAndTokens, type_: Type, keys: PartKeys, steps: range, runs: Runs) -> TypeOutcome:
    parameters = type_.parameters
    crossings = noisy_crossings(part, keyed, type_, keys, runs, steps.stop)
    near = _clients(part) >= parameters.k
    near[crossings.sets] = True
    exact = stretches_of(runs.where(near[runs.sets]), steps.stop)
    costs = costs_of(runs, phases_of(keyed.set_keys, parameters), parameters)
    found = outcome_of(parameters, crossings, exact, runs, part.touched, steps, classes_of(costs))
    found.costly_sets, found.costly = _costly(part, runs, parameters.never_true_below, steps.stop)
    return found


def _costly(part: LogPart, runs: Runs, least: int, until: int) -> tuple[int, Ints]:
    """:attr:`TypeOutcome.costly_sets` and :attr:`TypeOutcome.costly`."""
    counted = stretches_of(runs.where((_clients(part) >= least)[runs.sets]), until)
    costly = np.zeros(len(part.sets), bool)
    costly[counted.sets[counted.counts >= least]] = True
    clients, sets = np.unique(part.client_of[costly[part.set_of]], return_counts=True)
    names = b"".join(sha256(part.clients[client]).digest()[:8] for client in clients.tolist())
    return int(costly.sum()), np.array([np.frombuffer(names, ">i8"), sets], np.int64)


def noisy_crossings(
    part: LogPart, keyed: KeysAndTokens, type_: Type, keys: PartKeys, runs: Runs, until: int
) -> Crossings:
    """The crossings of the sets of a part before step ``until``, as the service finds them: by counts of tokens.

    Noise and status depend on earlier crossings alone, and a set never has more tokens than clients. So the first
    crossing by clients is the first by tokens too, if the count of tokens in its step is the same or crosses with any
    noise; then the second, and so on. Only sets with another count in such a step are decided by tokens.
    """
    parameters = type_.parameters
    tapes = Tapes(keys.noise_key, keys.deployment, type_.name, parameters)
    possible = _clients(part) >= parameters.never_true_below

    def decided(joins: MemberJoins, runs: Runs) -> Crossings:
        return crossings_of(parameters, tapes, keyed.set_keys, joins, runs, until)

    by_clients = decided(part.joins.where(possible), runs.where(possible[runs.sets]))
    fewer = np.zeros(len(part.sets), bool)
    fewer[by_clients.sets[_fewer_tokens(parameters, part, keyed, by_clients)]] = True
    if not fewer.any():
        return by_clients
    tokens = token_joins(part, keyed, parameters.client_bits, fewer)
    by_tokens = decided(tokens, runs_of(tokens, parameters.window))
    return by_clients.where(~fewer[by_clients.sets]).and_of_others(by_tokens)


def _clients(part: LogPart) -> Ints:
    """The number of clients of each set."""
    return np.bincount(part.set_of, minlength=len(part.sets))


def _fewer_tokens(parameters: Parameters, part: LogPart, keyed: KeysAndTokens, crossings: Crossings) -> Bools:
    """The crossings in whose step clients share tokens, so that the count is lower and some noise does not cross.

    Of more clients than :data:`_SPARE` beyond the certain count, some are enough.
    """
    bits, sure = parameters.client_bits, parameters.surely_true_from
    owners, pairs = _present(part, crossings, _counted_from(parameters, keyed, crossings))
    counts = np.bincount(owners, minlength=len(crossings.sets))
    enough = ranks(counts) < sure + _SPARE
    tokens = (owners[enough] << bits) + (keyed.tokens(pairs[enough]) >> (TOKEN_BITS - bits))
    distinct = np.bincount(np.unique(tokens) >> bits, minlength=len(crossings.sets))
    return distinct < np.minimum(counts, sure)


def _counted_from(parameters: Parameters, keyed: KeysAndTokens, crossings: Crossings) -> Ints:
    """The first step whose joins count in the step of each crossing."""
    sets, steps = crossings.sets, crossings.begins
    before = np.full(len(sets), NEVER)
    before[1:] = np.where(sets[1:] == sets[:-1], steps[:-1], NEVER)
    phases = phases_of([keyed.set_keys[number] for number in sets.tolist()], parameters)
    return np.maximum(steps - parameters.window + 1, searches_at(parameters, phases, steps, before).sinces)


def _present(part: LogPart, crossings: Crossings, sinces: Ints) -> tuple[Ints, Ints]:
    """The pairs that are counted in the step of each crossing: the positions of the crossings, sorted, and the pairs.

    They have a join from the step in ``sinces`` on, and no later one before the end of the step of the crossing. Few
    windows of crossings overlap, so these are about as many as the joins.
    """
    crosses = np.zeros(len(part.sets), bool)
    crosses[crossings.sets] = True
    rows = np.flatnonzero(crosses[part.set_of[part.joins.members]])
    pairs, steps = part.joins.members[rows], part.joins.steps[rows]
    # A window at step 0 does not reach the set before.
    span = int(steps.max(initial=0)) + int((crossings.begins - sinces).max(initial=0)) + 2
    places = part.set_of[pairs] * span + steps
    order = np.argsort(places, kind="stable")
    at = crossings.sets * span
    begins, ends = (np.searchsorted(places, at + to, "right", sorter=order) for to in (sinces - 1, crossings.begins))
    owners = np.repeat(np.arange(len(at)), ends - begins)
    rows = order[np.repeat(begins, ends - begins) + ranks(ends - begins)]
    same = np.append(pairs[1:] == pairs[:-1], False)
    joins_again = same[rows] & (np.append(steps[1:], 0)[rows] <= crossings.begins[owners])
    return owners[~joins_again], pairs[rows[~joins_again]]


def token_joins(part: LogPart, keyed: KeysAndTokens, bits: int, chosen: Bools) -> MemberJoins:
    """The joins of the chosen sets by token."""
    pairs = np.flatnonzero(chosen[part.set_of])
    tokens, rows = np.unique(
        (part.set_of[pairs] << bits) + (keyed.tokens(pairs) >> (TOKEN_BITS - bits)), return_inverse=True
    )
    row_of = np.full(len(part.set_of), -1)
    row_of[pairs] = rows
    members = row_of[part.joins.members]
    known = members >= 0
    return MemberJoins.of(tokens >> bits, members[known], part.joins.steps[known])
