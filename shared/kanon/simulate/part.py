"""Computes the crossings of a part of a log that fits into memory. A part holds all joins of its sets."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha256

import numpy as np

from kanon.gate.mechanism.tape import Tapes
from kanon.gate.mechanism.vectorised import phases_of
from kanon.gate.names import set_key
from kanon.gate.types import Type
from kanon.joinlog.numbered import Texts
from kanon.keys import Secret
from kanon.noise.words import length_prefixed
from kanon.simulate.crossings import Crossings, crossings_of
from kanon.simulate.keys import Keys
from kanon.simulate.outcome import Outcome, Touched, more_units_from, outcome_of
from kanon.simulate.presence import Bools, Ints, Joins, Runs, Stretches, distinct, runs_of, stretches_of
from kanon.simulate.rejoining import classes_of, costs_of

TOKEN_BITS = 32
"""Tokens are computed once with the most bits; a type uses the first of them."""

SetId = Callable[[bytes], bytes]
"""A function from the text of a set in the log to its set id."""


def digest(text: bytes) -> bytes:
    """The set id that ``kanon demo`` and ``kanon.client.set_id`` use: the SHA-256 of the text."""
    return sha256(text).digest()


@dataclass(frozen=True)
class Part:
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
    joins: Joins
    touched: Touched

    @classmethod
    def of(cls, steps: Ints, sets: Texts, clients: Texts) -> "Part":
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
            Joins.of(set_of, rows.astype(np.int64, copy=False), steps),
            Touched(*distinct(sets.numbers, steps)),
        )


@dataclass(frozen=True)
class Named:
    """The keys of the sets of a part, and tokens with :data:`TOKEN_BITS` bits, for one type name.

    ``tokens`` are those of ``pairs``, (n,): of all sets that can become true. No answer depends on the others.
    """

    set_keys: list[bytes]
    pairs: Ints
    tokens: Ints


def names_of(part: Part, type_name: str, keys: Keys, set_id: SetId = digest, least: int = 0) -> Named:
    """Compute set keys, and the tokens in sets of at least ``least`` clients, as ``join`` does."""
    set_keys = [set_key(keys.pepper, type_name, set_id(text)) for text in part.sets]
    clients = np.bincount(part.set_of, minlength=len(part.sets))
    pairs = np.flatnonzero((clients >= least)[part.set_of])
    return Named(set_keys, pairs, _tokens(part, set_keys, pairs, keys.client_key))


def _tokens(part: Part, set_keys: list[bytes], pairs: Ints, client_key: Secret) -> Ints:
    """:func:`client_token` of every pair. What all clients of a set share is hashed once for the set."""
    clients = [length_prefixed(text) for text in part.clients]
    found: list[bytes] = []
    last, mac = -1, client_key.mac_of()
    for number, client in zip(part.set_of[pairs].tolist(), part.client_of[pairs].tolist(), strict=True):
        if number != last:
            last, mac = number, client_key.mac_of(set_keys[number], b"client")
        found.append(mac(clients[client]))
    return np.frombuffer(b"".join(found), ">u4")[:: 32 // 4].astype(np.int64)


def outcomes(part: Part, types: Sequence[Type], keys: Keys, steps: range, set_id: SetId = digest) -> list[Outcome]:
    """The outcome of each type on the sets of a part."""
    least = {t.name: min(u.parameters.never_true_below for u in types if u.name == t.name) for t in types}
    names = {name: names_of(part, name, keys, set_id, least[name]) for name in least}
    exact_runs = {w: runs_of(part.joins, w) for w in dict.fromkeys(t.parameters.window for t in types)}
    return [
        _outcome(part, names[type_.name], type_, keys, steps, exact_runs[type_.parameters.window]) for type_ in types
    ]


def _outcome(part: Part, names: Named, type_: Type, keys: Keys, steps: range, runs: Runs) -> Outcome:
    parameters = type_.parameters
    clients = np.bincount(part.set_of, minlength=len(part.sets))
    joins = token_joins(part, names, parameters.client_bits)
    token_runs = runs if joins is part.joins else runs_of(joins, parameters.window)
    counted = _stretches_in(token_runs, clients >= parameters.never_true_below, steps)
    crossings = noisy_crossings(names, type_, keys, counted)
    near = clients >= min((parameters.k, *more_units_from(parameters)))
    near[crossings.sets] = True
    exact = _stretches_in(runs, near, steps)
    costs = costs_of(runs, phases_of(names.set_keys, parameters), parameters.window)
    return outcome_of(parameters, crossings, exact, runs, part.touched, steps, classes_of(costs))


def noisy_crossings(names: Named, type_: Type, keys: Keys, counted: Stretches) -> Crossings:
    """The crossings of sets, from the stretches of steps in which their counts are constant."""
    tapes = Tapes(keys.noise_key, keys.deployment, type_.name, type_.parameters)
    return crossings_of(type_.parameters, tapes, names.set_keys, counted)


def token_joins(part: Part, names: Named, bits: int) -> Joins:
    """The joins by token. They are the part's joins if no two clients of a set share a token."""
    tokens, rows = np.unique(
        (part.set_of[names.pairs] << bits) + (names.tokens >> (TOKEN_BITS - bits)), return_inverse=True
    )
    if len(tokens) == len(names.pairs):
        return part.joins
    row_of = np.full(len(part.set_of), -1)
    row_of[names.pairs] = rows
    members = row_of[part.joins.members]
    known = members >= 0
    return Joins.of(tokens >> bits, members[known], part.joins.steps[known])


def _stretches_in(runs: Runs, chosen: Bools, steps: range) -> Stretches:
    kept = chosen[runs.sets]
    return stretches_of(Runs(runs.members[kept], runs.sets[kept], runs.begins[kept], runs.ends[kept]), steps.stop)
